"""Downloads models from the Hugging Face Hub into the Hub's local cache.

A server sends an ETag and a commit for each file. huggingface_hub (2.4.0) uses the ETag and the commit as file names in
its cache. A hostile mirror could send paths, and thus create files anywhere. `guard_cache` makes the library's sessions
raise an error if an ETag or a commit is not a plain file name.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from glgpt.checkpoint.files import WEIGHT_FILES, first_line, weight_map
from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.gguf.reader import all_parts
from glgpt.text.tokenizer import TOKENIZER_EXTRAS
from glgpt.text.untrusted.chat import TEMPLATE

HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)  # gpt2, owner/name

_NAME = re.compile(r'(W/)?("?)[A-Za-z0-9][\w.=+~-]{0,127}\2', re.ASCII)  # an ETag or a commit that is a safe file name
_NAMES = ("ETag", "X-Linked-Etag", "X-Repo-Commit")


def not_found(name: str) -> str:
    """Returns the message for a `name` that is neither a folder nor a possible name on the Hub."""
    if name.lower().endswith(".gguf"):
        return f"{quoted(name, 300)} does not exist; give a GGUF file, or OWNER/NAME:FILE.gguf for one on the Hub"
    return (
        f"{written(name, 200)} is neither a folder nor a valid model name on the Hugging Face Hub; "
        "give a folder with config.json and weights, a GGUF file, or a Hub name like gpt2"
    )


def download(name: str, file: str = "") -> Path:
    """Downloads those files of a model that the cache lacks; returns the folder of the model's files in the cache.

    With `file`, downloads only this GGUF file (and its other parts, if it is split), and returns its path.
    Raises FileError if the model or the file cannot be downloaded.
    """
    # Imported here because the import of huggingface_hub is slow, and a model in a local folder does not need it.
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    here = f"there is no folder {name} here"
    offline = (
        f"{here}, and no model {name} in the local Hub cache; HF_HUB_OFFLINE prevents the download: "
        "unset it, or give a local folder"
    )
    gated = f"{here}, and the model on the Hub is gated: accept its terms at {hub}/{name}, then run hf auth login"
    absent = (
        f"model {name} on the Hub has no file {file}"
        if file
        else (
            f"model {name} on the Hub is not a transformers checkpoint: it has no config.json; for a GGUF file, "
            f"give {name}:FILE.gguf"
        )
    )
    reasons: tuple[tuple[type[Exception], str], ...] = (
        (errors.HFValidationError, not_found(name)),
        (errors.GatedRepoError, gated),
        (errors.RepositoryNotFoundError, f"{here}, and no model {name} on {hub}; if it is private, run hf auth login"),
        (errors.OfflineModeIsEnabled, offline),
        (errors.LocalEntryNotFoundError, offline if constants.HF_HUB_OFFLINE else ""),
        (errors.EntryNotFoundError, absent),
    )
    guard_cache()
    try:
        return _fetch_gguf(name, file) if file else _fetch(name)
    except GlgptError:
        raise
    except Exception as error:  # the library's many transport errors, a full disk, a damaged cache
        reason = next((text for kind, text in reasons if isinstance(error, kind)), "")
        why = first_line(error.__cause__ or error)
        other = f"{here}, and model {name} cannot be downloaded from {hub} ({why}): check the network"
        raise FileError(quoted(reason or other, 600)) from None


@functools.cache
def guard_cache() -> None:
    """Makes all huggingface_hub sessions of this process call `check_names` for each answer of a server."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    client = _http._GLOBAL_CLIENT_FACTORY  # the current factory, which has no public name

    def guarded() -> Any:
        session = client()
        session.event_hooks = session.event_hooks | {"response": [*session.event_hooks["response"], check_names]}
        return session

    # A hook on the current session would be lost: the library replaces the session after a refused connection.
    set_client_factory(guarded)


def check_names(answer: Any) -> None:
    """Raises FileError for an answer to a HEAD request whose ETag or commit is not a plain file name."""
    for header in _NAMES if answer.request.method == "HEAD" else ():
        name = answer.headers.get(header)
        if name is not None and not _NAME.fullmatch(name):
            where = quoted(answer.request.url, 200)
            raise FileError(
                f"{where} answers with {header} {written(name)}, which is not a file name: check HF_ENDPOINT"
            )


def _fetch_gguf(name: str, file: str) -> Path:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub import try_to_load_from_cache as cached

    paths: list[Path] = []
    for part in all_parts(file):
        if not isinstance(cached(name, part), str):
            # If the request fails, this call raises at once; hf_hub_download would retry for 20 s.
            get_hf_file_metadata(hf_hub_url(name, part))
        revision = paths[0].parents[len(Path(part).parts) - 1].name if paths else None  # the commit of the first part
        paths.append(Path(hf_hub_download(name, part, revision=revision)))
    return paths[0]


def _fetch(name: str) -> Path:
    from huggingface_hub import _CACHED_NO_EXIST, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub import try_to_load_from_cache as cached
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if not isinstance(cached(name, "config.json"), str):
        # If the request fails, this call raises at once; hf_hub_download would retry for 20 s.
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    folder = Path(hf_hub_download(name, "config.json")).parent
    missed: list[Exception] = []  # errors for files that the cache lacks, if the Hub cannot be reached

    def get(file: str) -> bool:
        # The folder's name is the commit. With the commit as the `revision`, all files are of one commit, and a file in
        # the cache needs no request.
        if cached(name, file, revision=folder.name) is _CACHED_NO_EXIST:
            return False
        try:
            hf_hub_download(name, file, revision=folder.name, local_files_only=bool(missed))
        except LocalEntryNotFoundError as error:
            missed.append(error)
            return False
        except EntryNotFoundError:
            return False
        return True

    # Weights are downloaded last. If the cache has them, an earlier call has already requested the small files. Then a
    # small file that the cache lacks is not an error, even if the Hub cannot be reached.
    plain = () if get("tokenizer.json") else ("vocab.json", "merges.txt")
    for file in (*plain, *TOKENIZER_EXTRAS, "generation_config.json", TEMPLATE):
        get(file)
    weights = next((file for file in WEIGHT_FILES if get(file)), None)
    shards = sorted(set(weight_map(folder / weights).values())) if weights and weights.endswith(".json") else []
    absent = [shard for shard in shards if not get(shard)]
    if missed and (weights is None or absent):
        raise missed[0]
    if weights is None:
        raise FileError(f"model {name} on the Hub holds no weights; looked for {', '.join(WEIGHT_FILES)}")
    if absent:
        raise FileError(f"model {name} on the Hub lacks {absent[0]}, which its {weights} lists")
    return folder
