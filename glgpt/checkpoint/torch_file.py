"""Locates the tensors of PyTorch's `pytorch_model.bin` without PyTorch; `Stored` describes where a tensor is.

A `.bin` file holds a pickle, which is never executed: `_Pickle` interprets its opcodes and accepts only the few names
that a dictionary of tensors needs. A hostile pickle could also run without end or fill the memory. Therefore the bytes
and operations of the pickles, the dimensions of a tensor and the length of strings are limited. Each copied element
counts as one operation. Of the values in a pickle, only strings are hashed or printed.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.system.files import open_input

# dtype name: (bytes per element, NumPy dtype of the map). Tensors of other dtypes are accepted only as buffers (tensors
# that are not weights), which are ignored.
READABLE: dict[str, tuple[int, str]] = {"F32": (4, "<f4"), "F16": (2, "<f2"), "BF16": (2, "<u2")}
_STORAGES = {
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "DoubleStorage": ("F64", 8),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}
_DICT = "collections OrderedDict"
_TENSORS = ("torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v2")
_PARAMETER = "torch._utils _rebuild_parameter"
_ALLOWED = {_DICT, *_TENSORS, _PARAMETER, *(f"torch {name}" for name in _STORAGES)}
MAX_DIMENSIONS = 8  # maximum dimensions of a tensor; the supported models have at most four
MAX_OPERATIONS = 1 << 19  # maximum per file; a tensor takes 30 operations, a model of 1000 layers has 14,000 tensors
_MAX_STRING_CHARACTERS = 1 << 12  # maximum characters of a string, because comparing long equal keys takes long
MAX_PICKLE_BYTES = 16 << 20  # maximum bytes of a file's pickles
_MAX_DIRECTORY_BYTES = 4 << 20  # maximum bytes of a zip file's directory
_MAX_INTEGER_BYTES = 16
_ENCRYPTED = 1  # bit in the flags of a zip file's member
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001


@dataclass(frozen=True)
class Stored:
    """The place of a tensor in its file: `offset` in bytes into `path`, `strides` in elements (None: contiguous).

    `sha256` is the checksum of the tensor's bytes, if the file has one. If `whole` is given, this tensor consists of
    rows of `whole`, and `sha256` is the checksum of `whole`.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] | None = None
    sha256: str | None = None
    whole: Stored | None = None

    def rows(self, rows: slice) -> Stored:
        """Returns the place of these rows of the matrix."""
        step = (self.strides or contiguous_strides(self.shape))[0]
        offset = self.offset + rows.start * step * READABLE[self.dtype][0]
        return replace(self, shape=(rows.stop - rows.start, *self.shape[1:]), offset=offset, whole=self)

    @property
    def readable(self) -> bool:
        """True if `map` supports the dtype."""
        return self.dtype in READABLE

    def sample(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns the values at these flat indices. Reads no other values if the tensor is contiguous."""
        return widened(self.map().reshape(-1)[indices], self.dtype).astype(np.float32)

    def map(self) -> NDArray[Any]:
        """Returns a new read-only memory map of the tensor, with its `shape`; BF16 elements are uint16.

        The file is mapped until the array is freed. Raises GlgptError for an unsupported dtype, and OSError or
        ValueError if the file has shrunk.
        """
        if self.dtype not in READABLE:
            raise GlgptError(f"has dtype {self.dtype}; glgpt reads F32, F16 and BF16")
        strides = self.strides or contiguous_strides(self.shape)
        span = 1 + sum((n - 1) * step for n, step in zip(self.shape, strides, strict=True))
        size, dtype = READABLE[self.dtype]
        flat: NDArray[Any] = np.memmap(self.path, dtype, "r", self.offset, (span,)).view(np.ndarray)
        in_bytes = tuple(size * step for step in strides)
        return np.lib.stride_tricks.as_strided(flat, self.shape, in_bytes, writeable=False)


def widened(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Widens bf16 values, given as uint16, to float32, because NumPy has no bf16; returns other values unchanged.

    A bf16 value is the upper 16 bits of a float32.
    """
    return np.left_shift(values, 16, dtype=np.uint32).view(np.float32) if dtype == "BF16" else values


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str
    itemsize: int
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Global:
    name: str  # "module attribute"


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the row-major strides of `shape`, in elements."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides)) if shape else ()


def torch_tensors(path: Path) -> dict[str, Stored]:
    """Returns where each tensor is in a state dict that `torch.save` wrote, in the zip format or the older one.

    Raises GlgptError, naming the file, for anything else: garbage, a truncated file, a pickle that would run code.
    """
    opened = open_input(path)  # outside `try`, because errors of `open_input` already name the file
    name = quoted(path, 300)
    try:
        with opened as file:
            start = file.read(4)
            file.seek(0)
            if start == b"PK\x03\x04":
                return _from_zip(path, file)
            if start[:1] == b"\x80":
                return _from_legacy(path, file)
        raise GlgptError("is not a PyTorch file")
    except GlgptError as error:
        raise FileError(f"{name} {error}") from None
    except Exception as error:  # any error of zipfile, pickletools or a seek means that the file is damaged
        raise FileError(f"{name} is not a valid PyTorch file ({type(error).__name__})") from None


class _Bounded:
    """A file that raises GlgptError after `most` bytes, for readers that keep all bytes in memory."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self.left = file, most
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self.left + 1 if size < 0 else min(size, self.left + 1))
        return self._counted(data)

    def readline(self) -> bytes:
        return self._counted(self._file.readline(self.left + 1))

    def _counted(self, data: bytes) -> bytes:
        self.left -= len(data)
        if self.left < 0:
            raise GlgptError("is refused: the description of its tensors is too long")
        return data


def _from_zip(path: Path, file: IO[bytes]) -> dict[str, Stored]:
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(_Bounded(file, _MAX_DIRECTORY_BYTES)) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise GlgptError("is damaged: two of its entries have the same name")
        pickled = [name for name in entries if name.endswith("/data.pkl")]
        if len(pickled) != 1:
            raise GlgptError("is a zip file, but not one that PyTorch wrote (no data.pkl)")
        root = pickled[0].removesuffix("data.pkl")

        def where(name: str) -> tuple[int, int]:  # offset and length of an entry's bytes
            info = entries.get(root + name)
            if info is None:
                raise GlgptError(f"is truncated or damaged: {quoted(root + name)} is missing")
            file.seek(info.header_offset)
            header = file.read(30)
            flags, name_length, extra_length = struct.unpack("<6xH18xHH", header)
            if (info.flag_bits | flags) & _ENCRYPTED:
                raise GlgptError(f"cannot be read: {quoted(root + name)} is encrypted; save an unencrypted copy")
            if info.compress_type != zipfile.ZIP_STORED:
                raise GlgptError(f"cannot be mapped: {quoted(root + name)} is compressed")
            offset = info.header_offset + 30 + name_length + extra_length
            if header[:4] != b"PK\x03\x04" or offset + info.file_size > size:
                raise GlgptError(f"is truncated or damaged at {quoted(root + name)}")
            return offset, info.file_size

        def content(name: str) -> IO[bytes]:
            offset, length = where(name)
            file.seek(offset)
            return io.BytesIO(_Bounded(file, MAX_PICKLE_BYTES).read(length))

        if root + "byteorder" in entries and content("byteorder").read() != b"little":
            raise GlgptError("was written on a big-endian machine; save it again on a little-endian one")
        state = _Pickle(content("data.pkl")).value()
        return _locate(path, state, lambda key: where(f"data/{key}"))


def _from_legacy(path: Path, file: IO[bytes]) -> dict[str, Stored]:
    # The file has five pickles (magic, version, platform, state dict, storage keys). The storages follow; each
    # begins with the number of its elements.
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    pickles = _Pickle(_Bounded(file, MAX_PICKLE_BYTES))
    magic, version, system = (pickles.value() for _ in range(3))
    if type(magic) is not int or magic != _LEGACY_MAGIC or version != _LEGACY_VERSION:
        raise GlgptError("is not a PyTorch file")
    if not (isinstance(system, dict) and system.get("little_endian") is True):
        raise GlgptError("was written on a big-endian machine; save it again on a little-endian one")
    state, keys = pickles.value(), pickles.value()
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        if not isinstance(key, str) or key not in pickles.storages or key in places:
            raise GlgptError("is damaged: its list of storages is not that of its tensors")
        (count,) = struct.unpack("<q", file.read(8))
        length = count * pickles.storages[key].itemsize
        if count < 0 or file.tell() + length > size:
            raise GlgptError(f"is truncated or damaged at storage {quoted(key)}")
        places[key] = (file.tell(), length)
        file.seek(length, io.SEEK_CUR)
    return _locate(path, state, places.__getitem__)


def _locate(path: Path, state: Any, where: Callable[[str], tuple[int, int]]) -> dict[str, Stored]:
    """Converts the unpickled dictionary to `Stored` places; `where` returns a storage's offset and length in bytes."""
    if not isinstance(state, dict):
        raise GlgptError("does not hold a dictionary of tensors")
    found: dict[str, Stored] = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, _Tensor):
            wrong = f"{written(name)} is not a tensor" if isinstance(name, str) else "a key is not a string"
            raise GlgptError(f"does not hold a plain dictionary of tensors: {wrong}")
        storage = tensor.storage
        if len(tensor.shape) > MAX_DIMENSIONS:
            raise GlgptError(f"is refused: tensor {written(name)} has too many dimensions, {len(tensor.shape)}")
        numbers = (tensor.start, *tensor.shape, *tensor.strides)
        if len(tensor.shape) != len(tensor.strides) or any(type(n) is not int or not 0 <= n < 1 << 63 for n in numbers):
            raise GlgptError(f"has a damaged description of tensor {written(name)}")
        # The stride of a dimension of size 1 is never used, so it may have any value.
        contiguous = contiguous_strides(tensor.shape)
        sized = zip(tensor.shape, tensor.strides, contiguous, strict=True)
        strides = contiguous if 0 in tensor.shape else tuple(plain if n == 1 else step for n, step, plain in sized)
        last = tensor.start + sum((n - 1) * step for n, step in zip(tensor.shape, strides, strict=True))
        offset, length = where(storage.key)
        if 0 not in tensor.shape and (last + 1) * storage.itemsize > length:
            raise GlgptError(f"is truncated or damaged: tensor {written(name)} reaches beyond its storage")
        if math.prod(tensor.shape) * storage.itemsize > length:  # else a small file could hold a tensor of terabytes
            raise GlgptError(f"holds tensor {written(name)}, which repeats its elements; save a contiguous copy")
        start = offset + tensor.start * storage.itemsize
        found[name] = Stored(path, storage.dtype, tensor.shape, start, None if strides == contiguous else strides)
    return found


class _Pickle:
    """Evaluates pickles of inert values: numbers, strings, tuples, lists, dictionaries with string keys, tensors."""

    def __init__(self, file: Any) -> None:
        self.storages: dict[str, _Storage] = {}
        self._file = file
        self._left = MAX_OPERATIONS
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []  # for each MARK opcode, the stack before this opcode
        self._memo: dict[int, Any] = {}

    def value(self) -> Any:
        """Returns the value of the next pickle. Raises GlgptError for a name or opcode that no state dict needs."""
        self._stack, self._marked, self._memo = [], [], {}
        for opcode, arg, _ in pickletools.genops(self._file):
            self._charge(1)
            if opcode.name == "STOP":
                return self._stack.pop()
            self._execute(opcode.name, arg)
        raise GlgptError("is truncated")

    def _execute(self, name: str, arg: Any) -> None:
        stack, memo = self._stack, self._memo
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._marked.append(stack)
                self._stack = []
            case "GLOBAL":
                stack.append(_allowed(arg))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                if not (isinstance(attribute, str) and isinstance(module, str)):
                    raise GlgptError("is refused: its pickle imports a name that is not a string")
                stack.append(_allowed(f"{module} {attribute}"))
            case "BINPUT" | "LONG_BINPUT":
                memo[arg] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[arg])
            case "BINPERSID":
                stack.append(self._storage(stack.pop()))
            case "REDUCE":
                args, function = stack.pop(), stack.pop()
                stack.append(self._call(function, args))
            case "BUILD":  # a state dict's _metadata, which is ignored
                stack.pop()
            case "TUPLE" | "APPENDS" | "SETITEMS" | "TUPLE1" | "TUPLE2" | "TUPLE3" | "APPEND" | "SETITEM":
                self._collect(name)
            case _:
                stack.append(_constant(name, arg))

    def _collect(self, name: str) -> None:
        """Replaces items at the top of the stack by a tuple, or adds them to the list or dictionary below them."""
        stack = self._stack
        match name:
            case "TUPLE" | "APPENDS" | "SETITEMS":
                items, stack = stack, self._marked.pop()
                self._stack = stack
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                items = stack[-count:]
                del stack[-count:]
            case _:
                count = 1 if name == "APPEND" else 2
                items = [stack.pop() for _ in range(count)][::-1]
        match name:
            case "APPEND" | "APPENDS":
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                _set(stack[-1], zip(items[::2], items[1::2], strict=True))
            case _:
                stack.append(tuple(items))

    def _charge(self, operations: int) -> None:
        self._left -= operations
        if self._left < 0:
            raise GlgptError(f"is refused: its pickle takes more than {MAX_OPERATIONS:,} operations")

    def _call(self, function: Any, args: Any) -> Any:
        """Calls one of the functions that a state dict needs; counts each copied element as an operation."""
        name = function.name if isinstance(function, _Global) and isinstance(args, tuple) else ""
        if name == _DICT and len(args) <= 1:
            made: dict[str, Any] = {}
            for pairs in args:
                self._charge(len(pairs))
                _set(made, (tuple(pair) for pair in pairs))
            return made
        if name in _TENSORS and isinstance(args[0], _Storage):
            storage, start, shape, strides = args[:4]
            # `torch.save` writes tuples. Lists, which may change later, would have to be copied for each tensor.
            if isinstance(shape, tuple) and isinstance(strides, tuple):
                return _Tensor(storage, start, shape, strides)
        if name == _PARAMETER and isinstance(args[0], _Tensor):
            return args[0]
        raise GlgptError("is refused: its pickle calls something that is not a function of a state dict")

    def _storage(self, persistent: Any) -> _Storage:
        if not isinstance(persistent, tuple) or not 5 <= len(persistent) <= 6:
            raise GlgptError("is refused: its pickle refers to something that is not a plain storage")
        kind, storage_type, key, _location, count = persistent[:5]
        texts = isinstance(kind, str) and isinstance(key, str) and isinstance(storage_type, _Global)
        # A sixth item that is not None describes a view; PyTorch has written no views since version 0.4.
        if not texts or kind != "storage" or not key.isalnum() or any(item is not None for item in persistent[5:]):
            raise GlgptError("is refused: its pickle refers to something that is not a plain storage")
        dtype, itemsize = _STORAGES[storage_type.name.removeprefix("torch ")]
        found = self.storages.setdefault(key, _Storage(key, dtype, itemsize, count))
        if found.dtype != dtype:
            raise GlgptError(f"is damaged: its storage {quoted(key)} has two dtypes")
        return found


def _constant(name: str, arg: Any) -> Any:
    """Returns the value of an opcode that reads nothing from the stack."""
    match name:
        case "NONE" | "NEWTRUE" | "NEWFALSE":
            return {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name]
        case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
            return {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]()
        case _ if name.startswith(("BININT", "LONG", "BINFLOAT", "BINUNICODE", "BINSTRING", "SHORT_BIN")):
            if isinstance(arg, int) and arg.bit_length() > 8 * _MAX_INTEGER_BYTES:
                raise GlgptError("is refused: its pickle holds an integer that is too large")
            if isinstance(arg, str) and len(arg) > _MAX_STRING_CHARACTERS:
                said = f"is refused: its pickle holds a string of {len(arg):,} characters, too long for a name"
                raise GlgptError(said)
            return arg
        case _:
            raise GlgptError(f"is refused: its pickle uses {name}, which no dictionary of tensors needs")


def _set(target: Any, pairs: Iterable[tuple[Any, Any]]) -> None:
    """Fills a dictionary. Only strings may be keys: hashing nested tuples can take exponential time."""
    if not isinstance(target, dict):
        raise GlgptError("is damaged: its pickle sets items of something that is not a dictionary")
    for key, value in pairs:
        if not isinstance(key, str):
            raise GlgptError("does not hold a plain dictionary of tensors: a key is not a string")
        target[key] = value


def _allowed(name: str) -> _Global:
    if name not in _ALLOWED:
        shown = written(name.replace(" ", "."))
        raise GlgptError(f"is refused: its pickle imports {shown}, which no dictionary of tensors needs")
    return _Global(name)
