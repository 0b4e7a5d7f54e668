"""Provides training texts: data sets that come with the package, and functions to fetch, clean and inspect a text.

from glgpt import data

text = data.bundled("addition")
cleaned, removed = data.clean(text)
print(data.inspect(cleaned))

The package depends only on `glgpt.text`, `glgpt.system` and `glgpt.errors`, not on models or devices.
"""

from glgpt.data.bundled import SETS, bundled
from glgpt.data.cleaning import Removed, clean
from glgpt.data.fetching import Fetched, fetch, source_of
from glgpt.data.inspecting import Inspection, inspect

__all__ = ["SETS", "Fetched", "Inspection", "Removed", "bundled", "clean", "fetch", "inspect", "source_of"]
