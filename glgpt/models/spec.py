"""Describes a decoder: what its blocks compute, its parameters and activations, and the names in its checkpoint.

This description is the spec of a model. The forward pass (`network`), loading, saving, initialisation, weight decay,
capture, dumps, comparison, export and benchmarks read the spec and do not depend on a family.
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
MAX_PARAMETERS = 1 << 34  # more than ten times as many as GPT-2 XL; 64 GiB in f32

ACTIVATIONS = ("gelu_new", "gelu", "relu", "relu2", "silu")
WINDOWED, WHOLE = "sliding_attention", "full_attention"  # values of `layer_types`
ALIASES = {"gelu_pytorch_tanh": "gelu_new", "swish": "silu"}  # transformers' other names of these functions


@dataclass(frozen=True)
class ModelConfig:
    """Describes a decoder-only transformer: its sizes, and the variants that its blocks compute.

    A family (`glgpt.models.families`) is a subclass that has the family's usual values, the names of the tensors in its
    checkpoints, and the mapping from its `config.json`. A field whose name ends in `_layers` has a boolean for each
    layer; None: true for all layers.
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
    tie_word_embeddings: bool = False  # the head, which computes the logits, uses the embedding's weight
    activation_function: str = "silu"  # of the MLP: one of ACTIVATIONS
    scale_attn_weights: bool = True  # divides scores by sqrt(width of a head)
    scale_attn_by_inverse_layer_idx: bool = False  # divides the scores of layer i by i + 1
    positions: str = "rotary"  # "absolute": learned, added to the embedding; "rotary": queries and keys are rotated
    rope_type: str = "default"
    norm: str = "rms"  # "rms": RMS norm; "layer": layer norm, with a bias
    gated: bool = True  # the MLP's hidden layer is act(gate) * up; False: act(up)
    qkv_bias: bool = False
    out_bias: bool = False  # bias of attention's output
    mlp_bias: bool = False
    query_scale: float | None = None  # factor of the scores; None: `scale_attn_weights` decides
    gain_offset: float = 0.0  # a norm's factor is gain + gain_offset
    norm_before: bool = True  # norms the input of attention and of the MLP
    norm_after: bool = False  # norms the output of attention and of the MLP
    parallel: bool = False  # attention and MLP both read the block's input
    qk_norm: str = ""  # RMS norm of queries and keys; "": none, "head": of each head, "width": of all heads
    scaled_embedding: bool = False  # the embedding is multiplied by sqrt(n_embd)
    rotary_share: float = 1.0  # share of a head's columns that rotate
    local_rope_theta: float | None = None  # base in layers with a window, without scaling; None: as in other layers
    rotary_layers: tuple[bool, ...] | None = None  # which layers rotate queries and keys
    window: int | None = None  # number of positions to which a token attends, its own included; None: all
    window_layers: tuple[bool, ...] | None = None  # which layers have the window
    attn_softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    logit_softcap: float | None = None
    interleaved_heads: bool = False  # in the checkpoint's qkv tensor, each head's q, k and v follow each other

    model_type: ClassVar[str]  # in config.json
    architecture: ClassVar[str]  # class in transformers
    prefix: ClassVar[str]  # prefix of the name of every tensor in a checkpoint, except the head
    tensors: ClassVar[Mapping[str, str]]  # role -> tensor's name without ".weight"; {} stands for the block's number
    fused: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # checkpoint's tensor -> roles that share it, in row order
    keys: ClassVar[Mapping[str, str]]  # field -> its name in config.json
    only: ClassVar[Mapping[str, Any]] = {}  # field of config.json -> the only supported value
    own_names: ClassVar[Mapping[str, Name]] = {}  # captions in addition to those of `names.all_names`
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")  # matches a checkpoint's tensors that are not parameters
    head: ClassVar[str] = "lm_head.weight"
    input_first: ClassVar[bool] = False  # the checkpoint's linear weights are [in, out] instead of [out, in]
    scaled_outputs: ClassVar[bool] = False  # new weights of `o` and `down` are divided by sqrt(2 n_layer)
    dropouts: ClassVar[tuple[str, ...]] = ("attention_dropout",)  # dropout rates in config.json
    # Keyword arguments with which transformers' from_pretrained loads the reference model.
    reference_options: ClassVar[dict[str, Any]] = {"attn_implementation": "eager"}

    def __post_init__(self) -> None:
        checked(self)

    # -- config.json ------------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Returns the configuration that a parsed `config.json` describes; ignores keys that do not change the model.

        Raises GlgptError, which names the field, for a value that is out of range or not supported.
        """
        for name, only in cls.only.items():
            if config.get(name) not in (None, only):
                raise GlgptError(
                    f"config: {name} is {written(config[name])}; glgpt runs {cls.model_type} with {written(only)}"
                )
        return cls(**({own: config[key] for own, key in cls.keys.items() if key in config} | cls.more(config)))

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns fields of this class for those entries of a `config.json` that `keys` cannot describe."""
        return {}

    @classmethod
    def sized(cls, vocab_size: int, n_positions: int, n_embd: int, n_layer: int, n_head: int) -> ModelConfig:
        """Returns the configuration of a model of this size, with the family's usual settings and a tied head.

        A gated MLP is 8/3 n_embd wide, rounded up to a multiple of 4.
        """
        inner = math.ceil(8 * n_embd / 3 / 4) * 4 if cls.gated else None
        return cls(vocab_size, n_positions, n_embd, n_layer, n_head, n_inner=inner, tie_word_embeddings=True)

    def to_dict(self, dropout: float = 0.0) -> dict[str, Any]:
        """Returns the content of the `config.json` that transformers reads; `dropout` is the rate of all dropouts."""
        about = {"model_type": self.model_type, "architectures": [self.architecture]}
        about |= {key: getattr(self, own) for own, key in self.keys.items()}
        return about | dict.fromkeys(self.dropouts, dropout) | self.published()

    def published(self) -> dict[str, Any]:
        """Returns the entries of `config.json` that `more` reads: the reverse of `more`."""
        return {}

    def shortened(self, positions: int) -> ModelConfig:
        """Returns the same model with at most this many positions."""
        return replace(self, n_positions=min(positions, self.n_positions))

    def fields(self) -> dict[str, Any]:
        """Returns all fields that determine results, with the family's name; `models.from_fields` reads them."""
        return {"model_type": self.model_type, **asdict(self)}

    # -- sizes ------------------------------------------------------------------------------------------------------

    @cached_property
    def context(self) -> int:
        """Returns the number of positions that a program's caches hold: `n_positions`, or fewer (`with_context`).

        The number does not change results, so `fields` and comparisons of configurations ignore it.
        """
        return self.n_positions

    @cached_property
    def half_caches(self) -> bool:
        """True if a program's caches hold 16-bit floats (`with_context`). `fields` and comparisons ignore that."""
        return False

    def with_context(self, positions: int, half_caches: bool | None = None) -> ModelConfig:
        """Returns the same model for programs whose caches hold `positions` positions; the maximum is `n_positions`.

        `half_caches` is true if the caches hold 16-bit floats; None: as in this configuration.
        """
        config = copy.copy(self)
        config.__dict__["context"] = min(positions, self.n_positions)
        if half_caches is not None:
            config.__dict__["half_caches"] = half_caches
        return config

    @property
    def d_head(self) -> int:
        """Returns the width of one attention head."""
        return self.n_embd // self.n_head if self.head_dim is None else self.head_dim

    @property
    def n_kv_head(self) -> int:
        """Returns the number of key heads, which is also the number of value heads."""
        return self.n_head if self.kv_heads is None else self.kv_heads

    @property
    def group(self) -> int:
        """Returns the number of query heads that share one head of keys and values."""
        return self.n_head // self.n_kv_head

    @property
    def d_inner(self) -> int:
        """Returns the width of the MLP's hidden layer."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    # -- what a layer computes --------------------------------------------------------------------------------------

    def scale(self, layer: int) -> float:
        """Returns the factor by which the scores of a layer are multiplied."""
        scale = float(self.d_head**-0.5) if self.scale_attn_weights else 1.0
        scale = scale if self.query_scale is None else self.query_scale
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale

    @property
    def embed_scale(self) -> float:
        """Returns the factor by which the embedding is multiplied."""
        return self.n_embd**0.5 if self.scaled_embedding else 1.0

    @property
    def d_rotary(self) -> int:
        """Returns how many columns of a head rotate."""
        return int(self.d_head * self.rotary_share)

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        """Returns, for each pair of columns of a head, the radians of its rotation per position (Su et al. 2021)."""
        return frequencies(self.rope_theta, self.d_rotary, self.rope_type, self.rope_scaling or ())

    def rotation(self, layer: int) -> Angles:
        """Returns the rotation of a layer's queries and keys by position; no frequencies if they do not rotate."""
        if self.positions != "rotary" or (self.rotary_layers is not None and not self.rotary_layers[layer]):
            return Angles((), 1.0)
        if self.local_rope_theta is not None and self.window_of(layer):
            return Angles(frequencies(self.local_rope_theta, self.d_rotary), 1.0)
        return Angles(self.frequencies, scaling_factor(self.rope_type, self.rope_scaling or ()))

    def window_of(self, layer: int) -> int:
        """Returns the number of positions to which a token attends in a layer, its own included; 0: all positions."""
        windowed = self.window_layers is None or self.window_layers[layer]
        return self.window if self.window is not None and windowed else 0

    # -- parameters and activations ---------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Returns every parameter that a checkpoint must hold, by name, in order of use."""
        return parameter_table(self)

    @cached_property
    def file_tensors(self) -> dict[str, FileTensor]:
        """Returns every tensor that a checkpoint must hold, in order of use, by its stored name without the prefix."""
        return file_tensor_table(self)

    def file_place(self, parameter: str) -> tuple[FileTensor, slice]:
        """Returns the tensor of a checkpoint that holds a parameter, and the parameter's rows in that tensor."""
        return self._file_places[parameter]

    @cached_property
    def _file_places(self) -> dict[str, tuple[FileTensor, slice]]:
        return {name: (each, rows) for each in self.file_tensors.values() for name, rows in each.rows.items()}

    @cached_property
    def activations(self) -> dict[str, Activation]:
        """Returns every activation by name, in order of computation; queries and keys are those after rotation."""
        return activation_table(self)

    def tensor(self, role: str, layer: int | str = "{}") -> str:
        """Returns the name of the tensor with this role in a layer, without `.weight` or `.bias`."""
        return self.tensors[role].format(layer)

    @property
    def embedding(self) -> str:
        """Returns the name of the token embedding; if head and embedding are tied, the head uses this parameter too."""
        return f"{self.tensors['embed']}.weight"

    @property
    def block_prefix(self) -> str:
        """Returns the prefix of the names of a block's parameters; {} stands for the block's number."""
        return self.tensors["block"] + "."

    # -- derived ----------------------------------------------------------------------------------------------------

    @property
    def tied(self) -> dict[str, str]:
        """Returns the tensors of a checkpoint that repeat a parameter: name of the tensor -> name of the parameter."""
        return {self.head: self.embedding} if self.tie_word_embeddings else {}

    @property
    def output(self) -> str:
        """Returns the name of the parameter that turns the output of the final norm into logits."""
        return self.tied.get(self.head, self.head)

    @property
    def parameter_count(self) -> int:
        """Returns the number of learned values; a head that is tied to the embedding counts once."""
        return sum(p.count for p in self.parameters.values())

    @property
    def block_flops(self) -> int:
        """Returns the floating-point operations per token in the linear layers of all blocks, without the head."""
        return 2 * sum(p.count for p in self.parameters.values() if p.product and p.layer is not None)

    @property
    def head_flops(self) -> int:
        """Returns the floating-point operations for the logits of one token."""
        return 2 * self.parameters[self.output].count

    def training_flops(self, context: int) -> int:
        """Returns the floating-point operations per token of a training step on sequences of `context` positions.

        The backward pass takes twice as many operations as the forward pass. Together they take 6 N operations for the
        N weights of linear layers, and 12 L W T for attention with L layers, a total width W of all heads and T
        positions (Kaplan et al. 2020).
        """
        attention = 12 * self.n_layer * self.n_head * self.d_head * context
        return 3 * (self.block_flops + self.head_flops) + attention

    @property
    def names(self) -> dict[str, Name]:
        """Returns caption and explanation of activations, parameters, states and passes by name.

        In a name, {} stands for a block's number.
        """
        found = all_names(self) | dict(self.own_names)
        if self.tie_word_embeddings:
            title, about = found[self.embedding]
            found[self.embedding] = Name(title, f"{about}; also {LOGITS_FROM}")
        return found

    def template(self, parameter: Parameter) -> str:
        """Returns the name of a parameter with {} instead of the block's number."""
        if parameter.layer is None:
            return parameter.name
        return self.block_prefix + parameter.name.removeprefix(self.block_prefix.format(parameter.layer))

    def stored_name(self, name: str) -> str:
        """Returns the name that a tensor has in a checkpoint file, with the prefix."""
        return name if name == self.head else self.prefix + name

    def shape(self) -> dict[str, int]:
        """Returns the sizes that every family has, by name."""
        names = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_kv_head", "d_head")
        return {name: getattr(self, name) for name in names}

    def stream(self) -> list[str]:
        """Returns the names of the residual stream: after the embedding, then after each block."""
        return [EMBED, *(in_block(i, RESID_POST) for i in range(self.n_layer))]

    def patterns(self) -> list[str]:
        """Returns the names of the attention patterns, one for each layer."""
        return [in_block(i, PATTERN) for i in range(self.n_layer)]


# Fields with numbers: (name, minimum, bound); a value must be at least the minimum and below the bound.
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
    """Raises GlgptError for a value that is out of range or conflicts with another value.

    The error uses the field's name in `config.json` if `keys` has one.
    """
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
    """Raises GlgptError for a switch that is not a boolean, a number out of range or an unknown activation function.

    Checks the numbers in `LIMITS` and converts them to float. Converts the activation function to the name that glgpt
    uses.
    """
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
            limits = f"in [{low}, {high})" if high < math.inf else f"of at least {low}"
            raise GlgptError(f"config: {said.get(name, name)} is {written(value)}; it must be a number {limits}")
        object.__setattr__(config, name, float(value))  # JSON's 0 is an int, and GLSL needs a float
    act = config.activation_function
    if isinstance(act, str):
        object.__setattr__(config, "activation_function", ALIASES.get(act, act))
    if not isinstance(act, str) or config.activation_function not in ACTIVATIONS:
        name = said.get("activation_function", "activation_function")
        raise GlgptError(f"config: {name} {written(act)} is not one of {', '.join(ACTIVATIONS)}")


def _check_layers(config: ModelConfig) -> None:
    """Raises GlgptError unless each `_layers` field has a value for every layer; converts the values to booleans."""
    for name in ("rotary_layers", "window_layers"):
        layers = getattr(config, name)
        if layers is not None:
            layers = tuple(map(bool, layers))
            object.__setattr__(config, name, layers)
            if len(layers) != config.n_layer:
                raise GlgptError(f"config: {name} has {len(layers)} values for {config.n_layer} layers")


def whole_number(config: Mapping[str, Any], name: str, default: int) -> int:
    """Returns the positive integer `name` of a config.json, or `default` if the entry is missing or null.

    Raises GlgptError, which names the entry, for any other value and above `MAX_SIZE`.
    """
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_SIZE:
        raise GlgptError(f"config: {name} is {written(value)}; it must be a positive integer")
    return value


def layer_count(config: Mapping[str, Any], name: str, default: int) -> int:
    """Returns the number of layers as `whole_number` does. Raises GlgptError above MAX_LAYERS, too."""
    count = whole_number(config, name, default)
    if count > MAX_LAYERS:
        raise GlgptError(f"config: {name} is {count}; at most {MAX_LAYERS} are supported")
    return count


def values_of_layers(config: Mapping[str, Any], name: str, default: Sequence[Any]) -> list[Any]:
    """Returns the list `name` of a config.json, or `default` if the entry is missing or null.

    Raises GlgptError if the value is not a list or has more than MAX_LAYERS elements. `checked` later compares the
    length with `n_layer`.
    """
    found = config.get(name)
    found = list(default) if found is None else found
    if not isinstance(found, list) or len(found) > MAX_LAYERS:
        raise GlgptError(f"config: {name} is {written(found)}; it must be a list with a value for each layer")
    return found


def read_windows(config: Mapping[str, Any], windowed: Sequence[bool]) -> dict[str, Any]:
    """Returns the fields `window` and `window_layers` from a config.json; no fields if no layer has a window.

    The entry `layer_types` has the type of each layer. If it is missing, the layers that are true in `windowed` have
    the window. Raises GlgptError for an unknown type of layer.
    """
    types = values_of_layers(config, "layer_types", [WINDOWED if value else WHOLE for value in windowed])
    for kind in types:
        if kind not in (WINDOWED, WHOLE):
            raise GlgptError(f"config: layer_types has {written(kind)}; glgpt runs {WINDOWED!r} and {WHOLE!r}")
    layers = [kind == WINDOWED for kind in types]
    return {"window": config.get("sliding_window"), "window_layers": layers} if any(layers) else {}


def published_windows(config: ModelConfig) -> dict[str, Any]:
    """Returns the entries of a config.json that `read_windows` reads; no entries if no layer has a window."""
    windows = [config.window_of(i) > 0 for i in range(config.n_layer)]
    if not any(windows):
        return {}
    types = [WINDOWED if window else WHOLE for window in windows]
    return {"use_sliding_window": True, "sliding_window": config.window, "layer_types": types}


def _check_sizes(config: ModelConfig) -> None:
    """Raises GlgptError if a size is not a positive integer, if it is too large, or if there are too many layers."""
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
