"""Lists the model architectures of GGUF that are supported, and how Hugging Face names their settings and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """Maps the keys and tensors of one architecture in GGUF files to their names in a Hugging Face checkpoint.

    `fields` maps keys of the metadata, without the architecture's name, to fields of `config.json`; `constants` holds
    fields of `config.json` that are the same for all models of the architecture. `tensors` and `block` map the file's
    names of tensors to the checkpoint's, without `.weight` or `.bias`. A name in `block` follows `blk.N.` in the file,
    and `prefix` and `layers` in the checkpoint; the {} of `layers` stands for the block's number N.
    """

    name: str
    model_type: str
    class_name: str  # in transformers
    prefix: str  # begins the checkpoint's name of each tensor except the head
    layers: str  # follows `prefix` in the names of a block's tensors
    fields: Mapping[str, str]
    tensors: Mapping[str, str]
    block: Mapping[str, str]
    head: str = "lm_head"
    constants: Mapping[str, Any] = field(default_factory=dict)
    # Tensors in which the file stores the two rows of each rotated pair next to each other
    rotated: tuple[str, ...] = ()
    # Tensors whose rows are ordered as all queries, all keys, all values in the file, and by head in the checkpoint
    fused: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()  # tensors that are [in, out] in the checkpoint and [out, in] in the file
    # Other values of `model_type` that are written to GGUF as this architecture, if no setting is lost
    also: tuple[str, ...] = ()
    share: str = ""  # field of `config.json` with the rotated share of a head, if the family's default is not 1
    norm_shift: float = 0.0  # a norm's gain in the file minus the checkpoint's; Gemma's checkpoints store gain - 1

    def names(self, layers: int) -> dict[str, str]:
        """Returns the checkpoint's names of tensors by the file's names, both without `.weight` or `.bias`."""
        found = {own: self.prefix + name for own, name in self.tensors.items()}
        for i in range(layers):
            block = self.prefix + self.layers.format(i)
            found |= {f"blk.{i}.{own}": block + name for own, name in self.block.items()}
        return found | {"output": self.head}


_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
_GEMMA = _SIZES | {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_TENSORS = {"token_embd": "embed_tokens", "output_norm": "norm"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_ROTATED = ("attn_q", "attn_k")
_SILU = {"hidden_act": "silu"}
_GEMMA_CONSTANTS = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}


def _decoder(name: str, class_name: str, model_type: str = "", **more: Any) -> Architecture:
    """Returns an architecture that names its tensors as Llama does."""
    given: dict[str, Any] = {"fields": _SIZES, "tensors": _TENSORS, "block": _BLOCK, "constants": _SILU}
    return Architecture(name, model_type or name, class_name, "model.", "layers.{}.", **(given | more))


_ALL = (
    Architecture(
        "gpt2",
        "gpt2",
        "GPT2LMHeadModel",
        "transformer.",
        "h.{}.",
        {
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "block_count": "n_layer",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f"},
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        constants={"activation_function": "gelu_new"},
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    ),
    _decoder(
        "llama",
        "LlamaForCausalLM",
        rotated=_ROTATED,
        also=("mistral",),
        constants=_SILU | {"attention_bias": False, "mlp_bias": False},
    ),
    _decoder("qwen2", "Qwen2ForCausalLM", constants=_SILU | {"use_sliding_window": False}),
    _decoder(
        "qwen3",
        "Qwen3ForCausalLM",
        block=_BLOCK | _HEAD_NORMS,
        constants=_SILU | {"attention_bias": False, "use_sliding_window": False},
    ),
    _decoder(
        "gemma2",
        "Gemma2ForCausalLM",
        fields=_GEMMA,
        block=_BLOCK | _FOUR_NORMS,
        constants=_GEMMA_CONSTANTS,
        norm_shift=1.0,
    ),
    _decoder(
        "gemma3",
        "Gemma3ForCausalLM",
        "gemma3_text",
        fields=_GEMMA,
        block=_BLOCK | _FOUR_NORMS | _HEAD_NORMS,
        constants=_GEMMA_CONSTANTS | {"rope_local_base_freq": 10000.0},
        norm_shift=1.0,
    ),
    _decoder(
        "smollm3",
        "SmolLM3ForCausalLM",
        rotated=_ROTATED,
        constants=_SILU | {"attention_bias": False, "mlp_bias": False, "no_rope_layer_interval": 4},
    ),
    _decoder(
        "olmo2",
        "Olmo2ForCausalLM",
        block={name: own for name, own in _BLOCK.items() if not name.endswith("_norm")}
        | {name: own for name, own in _FOUR_NORMS.items() if name.startswith("post")}
        | _HEAD_NORMS,
        constants=_SILU | {"attention_bias": False},
    ),
    Architecture(
        "gptneox",
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "gpt_neox.",
        "layers.{}.",
        {
            "context_length": "max_position_embeddings",
            "embedding_length": "hidden_size",
            "block_count": "num_hidden_layers",
            "feed_forward_length": "intermediate_size",
            "attention.head_count": "num_attention_heads",
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
            "rope.freq_base": "rotary_emb_base",
        },
        {"token_embd": "embed_in", "output_norm": "final_layer_norm"},
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        head="embed_out",
        constants={"hidden_act": "gelu", "attention_bias": True},
        fused=("attn_qkv",),
        share="rotary_pct",
    ),
    _decoder(
        "phi3",
        "Phi3ForCausalLM",
        fields=_SIZES | {"attention.sliding_window": "sliding_window"},
        block={
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
)
ARCHITECTURES = {architecture.name: architecture for architecture in _ALL}
