"""Describes a decoder: what its blocks compute, its parameters and activations, and the names in its checkpoint.

The forward pass (`network`), loading, saving, initialisation, weight decay, capture, dumps, comparison, export and
benchmarks read this spec and do not depend on a family.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from glgpt.errors import GlgptError, written
from glgpt.models.activations import EMBED, PATTERN, RESID_POST, Activation, activation_table, in_block
from glgpt.models.names import LOGITS_FROM, Name, all_names
from glgpt.models.parameters import FileTensor, Parameter, file_tensor_table, parameter_table
from glgpt.models.rotary import Angles, check_rotary, frequencies, scaling_factor

MAX_LAYERS = 1000  # GPT-2 XL has 48; a program lists the passes of every layer
MAX_SIZE = 1 << 24  # maximum vocabulary, width and context
MAX_PARAMETERS = 1 << 34  # ten times as many as GPT-2 XL; 64 GiB in f32

ACTIVATIONS = ("gelu_new", "gelu", "relu", "relu2", "silu")
WINDOWED, WHOLE = "sliding_attention", "full_attention"  # of `layer_types`
ALIASES = {"gelu_pytorch_tanh": "gelu_new", "swish": "silu"}  # other names that transformers has for them


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer: sizes, and which of the known variants its blocks compute.

    A family (`glgpt.models.families`) is a subclass with its usual values, the names of its checkpoints' tensors and
    the mapping from its `config.json`. Fields that differ by layer hold a value for each; None stands for all layers.
    """

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    kv_heads: int | None = None  # heads of keys and values; None: as many as query heads
    n_inner: int | None = None  # width of the MLP's hidden layer; None: 4 n_embd
    head_dim: int | None = None  # width of a head; None: n_embd / n_head
    layer_norm_epsilon: float = 1e-6
    rope_theta: float = 10000.0  # base of the rotary frequencies
    rope_scaling: tuple[float, ...] | None = None  # numbers of `rope_type` (`rotary.SCALINGS`)
    tie_word_embeddings: bool = False  # the head is the embedding
    activation_function: str = "silu"  # of the MLP: one of ACTIVATIONS
    scale_attn_weights: bool = True  # False: scores have the factor 1
    scale_attn_by_inverse_layer_idx: bool = False  # divides the scores of layer i by i + 1
    positions: str = "rotary"  # "absolute": a learned table added to the embedding; "rotary": rotates queries and keys
    rope_type: str = "default"
    norm: str = "rms"  # "rms", or "layer" with a bias
    gated: bool = True  # the hidden layer is act(gate) * up; False: act(up)
    qkv_bias: bool = False
    out_bias: bool = False  # of attention's output
    mlp_bias: bool = False
    query_scale: float | None = None  # factor of the scores; None: as `scale_attn_weights` says
    gain_offset: float = 0.0  # a norm's factor is gain + gain_offset
    norm_before: bool = True  # norms the input of attention and of the MLP
    norm_after: bool = False  # norms the output of attention and of the MLP
    parallel: bool = False  # attention and MLP both read the block's input
    qk_norm: str = ""  # RMS norm of queries and keys: "head": of each head, "width": of all heads together
    scaled_embedding: bool = False  # the embedding is multiplied by sqrt(n_embd)
    rotary_share: float = 1.0  # share of a head's columns that rotate
    local_rope_theta: float | None = None  # base of the layers with a window; None: `rope_theta`, scaled as the others
    rotary_layers: tuple[bool, ...] | None = None  # which layers rotate
    window: int | None = None  # positions that a token attends to, itself included
    window_layers: tuple[bool, ...] | None = None  # which layers have the window
    attn_softcap: float | None = None  # scores are softcap * tanh(scores / softcap)
    logit_softcap: float | None = None
    interleaved_heads: bool = False  # packed q, k, v of a checkpoint alternate by head

    model_type: ClassVar[str]  # in config.json
    architecture: ClassVar[str]  # class in transformers
    prefix: ClassVar[str]  # of every tensor in a checkpoint except the head
    tensors: ClassVar[Mapping[str, str]]  # role -> its name without ".weight"; {} stands for the block's number
    fused: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # tensor of a checkpoint -> roles whose rows it holds, in order
    keys: ClassVar[Mapping[str, str]]  # field -> its name in config.json
    only: ClassVar[Mapping[str, Any]] = {}  # field of config.json -> the only supported value
    own_names: ClassVar[Mapping[str, Name]] = {}  # in addition to `names.all_names`
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")  # tensors of a checkpoint that are not parameters
    head: ClassVar[str] = "lm_head.weight"
    input_first: ClassVar[bool] = False  # the checkpoint's linear weights are [in, out] instead of [out, in]
    scaled_outputs: ClassVar[bool] = False  # fresh weights that write to the stream are divided by sqrt(2 n_layer)
    dropouts: ClassVar[tuple[str, ...]] = ("attention_dropout",)  # fields of config.json
    # For transformers' from_pretrained
    reference_options: ClassVar[dict[str, Any]] = {"attn_implementation": "eager"}

    def __post_init__(self) -> None:
        checked(self)

    # -- config.json ------------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Reads a parsed `config.json`; ignores keys that do not change the computation.

        Raises GlgptError, naming the field, for one out of range or a value that no field of the spec describes.
        """
        for name, only in cls.only.items():
            if config.get(name) not in (None, only):
                raise GlgptError(
                    f"config: {name} is {written(config[name])}; glgpt runs {cls.model_type} with {written(only)}"
                )
        return cls(**({own: config[key] for own, key in cls.keys.items() if key in config} | cls.more(config)))

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields that a `config.json` holds in another form than `keys`."""
        return {}

    @classmethod
    def sized(cls, vocab_size: int, n_positions: int, n_embd: int, n_layer: int, n_head: int) -> ModelConfig:
        """Returns a model of this size with the family's usual settings; a gated MLP has 8/3 of the width."""
        inner = math.ceil(8 * n_embd / 3 / 4) * 4 if cls.gated else None
        return cls(vocab_size, n_positions, n_embd, n_layer, n_head, n_inner=inner, tie_word_embeddings=True)

    def to_dict(self, dropout: float = 0.0) -> dict[str, Any]:
        """Returns the `config.json` that transformers reads."""
        about = {"model_type": self.model_type, "architectures": [self.architecture]}
        about |= {key: getattr(self, own) for own, key in self.keys.items()}
        return about | dict.fromkeys(self.dropouts, dropout) | self.published()

    def published(self) -> dict[str, Any]:
        """Returns the fields of `config.json` that `more` reads."""
        return {}

    def shortened(self, positions: int) -> ModelConfig:
        """Returns the same model with at most this many positions."""
        return replace(self, n_positions=min(positions, self.n_positions))

    def fields(self) -> dict[str, Any]:
        """Returns everything that determines results, and the family's name; `from_fields` reads it."""
        return {"model_type": self.model_type, **asdict(self)}

    # -- sizes ------------------------------------------------------------------------------------------------------

    @cached_property
    def context(self) -> int:
        """Positions that a program's caches hold: the model's `n_positions`, or fewer (`with_context`).

        It does not change results, and is part of neither `fields` nor equality.
        """
        return self.n_positions

    @cached_property
    def half_caches(self) -> bool:
        """True if a program's caches hold 16-bit floats (`with_context`). As `context`, it is not part of equality."""
        return False

    def with_context(self, positions: int, half_caches: bool | None = None) -> ModelConfig:
        """Returns the same model for programs whose caches hold this many positions, at most `n_positions`.

        `half_caches`: whether the caches hold 16-bit floats; None: as in this one.
        """
        config = copy.copy(self)
        config.__dict__["context"] = min(positions, self.n_positions)
        if half_caches is not None:
            config.__dict__["half_caches"] = half_caches
        return config

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head if self.head_dim is None else self.head_dim

    @property
    def n_kv_head(self) -> int:
        """Number of key and value heads."""
        return self.n_head if self.kv_heads is None else self.kv_heads

    @property
    def group(self) -> int:
        """Number of query heads that share a key and value head."""
        return self.n_head // self.n_kv_head

    @property
    def d_inner(self) -> int:
        """Width of the MLP's hidden layer."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    # -- what a layer computes --------------------------------------------------------------------------------------

    def scale(self, layer: int) -> float:
        """Returns the factor of the scores of a layer."""
        scale = float(self.d_head**-0.5) if self.scale_attn_weights else 1.0
        scale = scale if self.query_scale is None else self.query_scale
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale

    @property
    def embed_scale(self) -> float:
        """Returns the factor of the embedding."""
        return self.n_embd**0.5 if self.scaled_embedding else 1.0

    @property
    def d_rotary(self) -> int:
        """Number of a head's columns that rotate."""
        return int(self.d_head * self.rotary_share)

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        """Radians by which each pair of a head's columns rotates from one position to the next (Su et al. 2021)."""
        return frequencies(self.rope_theta, self.d_rotary, self.rope_type, self.rope_scaling or ())

    def rotation(self, layer: int) -> Angles:
        """Returns how queries and keys of a layer rotate by position; without frequencies, they do not."""
        if self.positions != "rotary" or (self.rotary_layers is not None and not self.rotary_layers[layer]):
            return Angles((), 1.0)
        if self.local_rope_theta is not None and self.window_of(layer):
            return Angles(frequencies(self.local_rope_theta, self.d_rotary), 1.0)
        return Angles(self.frequencies, scaling_factor(self.rope_type, self.rope_scaling or ()))

    def window_of(self, layer: int) -> int:
        """Returns how many positions a token of this layer attends to, itself included; 0 if all."""
        windowed = self.window_layers is None or self.window_layers[layer]
        return self.window if self.window is not None and windowed else 0

    # -- parameters and activations ---------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Every parameter that a checkpoint must hold, by name, in order of use."""
        return parameter_table(self)

    @cached_property
    def file_tensors(self) -> dict[str, FileTensor]:
        """Every tensor that a checkpoint must hold, by its name there without the prefix, in order of use."""
        return file_tensor_table(self)

    def file_place(self, parameter: str) -> tuple[FileTensor, slice]:
        """Returns the tensor of a checkpoint that holds a parameter, and its rows there."""
        return self._file_places[parameter]

    @cached_property
    def _file_places(self) -> dict[str, tuple[FileTensor, slice]]:
        return {name: (each, rows) for each in self.file_tensors.values() for name, rows in each.rows.items()}

    @cached_property
    def activations(self) -> dict[str, Activation]:
        """Every activation, in order of computation; queries and keys are those after rotation."""
        return activation_table(self)

    def tensor(self, role: str, layer: int | str = "{}") -> str:
        """Returns the name of a tensor by its role, without `.weight` or `.bias`."""
        return self.tensors[role].format(layer)

    @property
    def embedding(self) -> str:
        """The embedding of tokens; also the head if they are tied."""
        return f"{self.tensors['embed']}.weight"

    @property
    def block_prefix(self) -> str:
        """The prefix of every parameter of a block; {} stands for the block's number."""
        return self.tensors["block"] + "."

    # -- derived ----------------------------------------------------------------------------------------------------

    @property
    def tied(self) -> dict[str, str]:
        """Tensors of a checkpoint that repeat a parameter: name -> the parameter."""
        return {self.head: self.embedding} if self.tie_word_embeddings else {}

    @property
    def output(self) -> str:
        """The parameter that turns the last norm into logits."""
        return self.tied.get(self.head, self.head)

    @property
    def parameter_count(self) -> int:
        """Number of learned values; a tied head counts once."""
        return sum(p.count for p in self.parameters.values())

    @property
    def block_flops(self) -> int:
        """Floating-point operations for a token in the products of all blocks, without attention and head."""
        return 2 * sum(p.count for p in self.parameters.values() if p.product and p.layer is not None)

    @property
    def head_flops(self) -> int:
        """Floating-point operations for the logits of a token."""
        return 2 * self.parameters[self.output].count

    def training_flops(self, context: int) -> int:
        """Returns the operations for a token in a training step: products and attention, forward and backward.

        The backward pass takes twice the operations of the forward pass: 6 N for the N weights of products and 12 L W T
        for attention (Kaplan et al. 2020).
        """
        attention = 12 * self.n_layer * self.n_head * self.d_head * context
        return 3 * (self.block_flops + self.head_flops) + attention

    @property
    def names(self) -> dict[str, Name]:
        """Caption and explanation of each activation, parameter, state and pass; {} stands for a block's number."""
        found = all_names(self) | dict(self.own_names)
        if self.tie_word_embeddings:
            title, about = found[self.embedding]
            found[self.embedding] = Name(title, f"{about}; also {LOGITS_FROM}")
        return found

    def template(self, parameter: Parameter) -> str:
        """Returns a parameter's name with {} as its block's number."""
        if parameter.layer is None:
            return parameter.name
        return self.block_prefix + parameter.name.removeprefix(self.block_prefix.format(parameter.layer))

    def stored_name(self, name: str) -> str:
        """Returns a parameter's name in a checkpoint file."""
        return name if name == self.head else self.prefix + name

    def shape(self) -> dict[str, int]:
        """Returns the sizes that every family has, by name."""
        names = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_kv_head", "d_head")
        return {name: getattr(self, name) for name in names}

    def stream(self) -> list[str]:
        """Returns the residual stream's names: after the embedding and after each block."""
        return [EMBED, *(in_block(i, RESID_POST) for i in range(self.n_layer))]

    def patterns(self) -> list[str]:
        """Returns the names of the attention patterns, one for each layer."""
        return [in_block(i, PATTERN) for i in range(self.n_layer)]


# field, minimum, limit
LIMITS = (
    ("layer_norm_epsilon", 0, 1),
    ("rope_theta", 1, math.inf),
    ("local_rope_theta", 1, math.inf),
    ("query_scale", 0, math.inf),
    ("rotary_share", 0, 1.001),
    ("attn_softcap", 1e-3, math.inf),
    ("logit_softcap", 1e-3, math.inf),
)


OPTIONAL = {"local_rope_theta", "query_scale", "attn_softcap", "logit_softcap"}


def checked(config: ModelConfig) -> None:
    """Raises GlgptError, naming the field as `config.json` does, for a value that is out of range or does not fit."""
    _check_sizes(config)
    _check_values(config)
    _check_layers(config)
    if config.n_head % config.n_kv_head:
        raise GlgptError(f"config: {config.n_head} heads cannot share {config.n_kv_head} key and value heads evenly")
    if config.head_dim is None and config.n_embd % config.n_head:
        width, heads = config.keys.get("n_embd", "n_embd"), config.keys.get("n_head", "n_head")
        raise GlgptError(f"config: {width} {config.n_embd} is not a multiple of {heads} {config.n_head}")
    if config.norm == "layer" and (config.gated or config.norm_after):
        raise GlgptError("config: layer norms are not supported with a gated MLP or after attention and MLP")
    if config.positions == "rotary":
        check_rotary(config)
    if config.parameter_count > MAX_PARAMETERS:
        count = f"{config.parameter_count:,} parameters"
        raise GlgptError(f"config: these sizes make {count}; at most {MAX_PARAMETERS:,} are supported")


def _check_values(config: ModelConfig) -> None:
    """Raises GlgptError for a switch that is not a boolean, a number out of range or an unknown activation."""
    said = config.keys
    for name in (field.name for field in fields(config) if field.type == "bool"):
        if not isinstance(getattr(config, name), bool):
            raise GlgptError(
                f"config: {said.get(name, name)} is {written(getattr(config, name))}; it must be true or false"
            )
    for name, low, high in LIMITS:
        value = getattr(config, name)
        if value is None and name in OPTIONAL:
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value < high:
            limits = f"in [{low}, {high})" if high < math.inf else f"from {low}"
            raise GlgptError(f"config: {said.get(name, name)} is {written(value)}; it must be a number {limits}")
        object.__setattr__(config, name, float(value))  # JSON's 0 is an int, which GLSL would not take
    act = config.activation_function
    if isinstance(act, str):
        object.__setattr__(config, "activation_function", ALIASES.get(act, act))
    if not isinstance(act, str) or config.activation_function not in ACTIVATIONS:
        name = said.get("activation_function", "activation_function")
        raise GlgptError(f"config: {name} {written(act)} is not one of {', '.join(ACTIVATIONS)}")


def _check_layers(config: ModelConfig) -> None:
    """Raises GlgptError unless fields that differ by layer have a value for each."""
    for name in ("rotary_layers", "window_layers"):
        layers = getattr(config, name)
        if layers is not None:
            layers = tuple(map(bool, layers))
            object.__setattr__(config, name, layers)
            if len(layers) != config.n_layer:
                raise GlgptError(f"config: {name} has {len(layers)} values for {config.n_layer} layers")


def whole_number(config: Mapping[str, Any], name: str, default: int) -> int:
    """Returns a positive integer of a config.json. Raises GlgptError, naming the field, for anything else."""
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_SIZE:
        raise GlgptError(f"config: {name} is {written(value)}; it must be a positive integer")
    return value


def layer_count(config: Mapping[str, Any], name: str, default: int) -> int:
    """Returns the number of layers of a config.json. Raises GlgptError, naming the field, if it is too large."""
    count = whole_number(config, name, default)
    if count > MAX_LAYERS:
        raise GlgptError(f"config: {name} is {count}; at most {MAX_LAYERS} are supported")
    return count


def values_of_layers(config: Mapping[str, Any], name: str, default: Sequence[Any]) -> list[Any]:
    """Returns a list of a config.json that has a value for each layer. Raises GlgptError for anything else."""
    found = config.get(name)
    found = list(default) if found is None else found
    if not isinstance(found, list) or len(found) > MAX_LAYERS:
        raise GlgptError(f"config: {name} is {written(found)}; it must be a list with a value for each layer")
    return found


def read_windows(config: Mapping[str, Any], windowed: Sequence[bool]) -> dict[str, Any]:
    """Returns the window of a config.json and the layers that have it: `layer_types`, or else those `windowed`.

    Raises GlgptError for another type of layer.
    """
    types = values_of_layers(config, "layer_types", [WINDOWED if value else WHOLE for value in windowed])
    for kind in types:
        if kind not in (WINDOWED, WHOLE):
            raise GlgptError(f"config: layer_types has {written(kind)}; glgpt runs {WINDOWED!r} and {WHOLE!r}")
    layers = [kind == WINDOWED for kind in types]
    return {"window": config.get("sliding_window"), "window_layers": layers} if any(layers) else {}


def published_windows(config: ModelConfig) -> dict[str, Any]:
    """Returns the window of a model and the layers that have it, as `read_windows` reads them."""
    windows = [config.window_of(i) > 0 for i in range(config.n_layer)]
    if not any(windows):
        return {}
    types = [WINDOWED if window else WHOLE for window in windows]
    return {"use_sliding_window": True, "sliding_window": config.window, "layer_types": types}


def _check_sizes(config: ModelConfig) -> None:
    """Raises GlgptError if a size is not a positive integer or too large, or there are too many layers."""
    names = ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head"]
    names += [name for name in ("kv_heads", "n_inner", "head_dim", "window") if getattr(config, name) is not None]
    for name in names:
        value, said = getattr(config, name), config.keys.get(name, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise GlgptError(f"config: {said} is {written(value)}; it must be a positive integer")
        if value > MAX_SIZE:
            raise GlgptError(f"config: {said} is {written(value)}; at most {MAX_SIZE} is supported")
    if config.n_layer > MAX_LAYERS:
        said = config.keys.get("n_layer", "n_layer")
        raise GlgptError(f"config: {said} is {config.n_layer}; at most {MAX_LAYERS} are supported")
