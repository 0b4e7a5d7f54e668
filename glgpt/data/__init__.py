"""Texts to learn from: sets that come with the package, fetching one, cleaning it up, looking at it.

from glgpt import data

text = data.bundled("addition")
cleaned, removed = data.clean(text)
print(data.inspect(cleaned))

It knows texts and where they are from; it never knows tokens, models or devices.
"""

from glgpt.data.bundled import SETS, bundled
from glgpt.data.cleaning import Removed, clean
from glgpt.data.fetching import Fetched, fetch, source_of
from glgpt.data.inspecting import Inspection, inspect

__all__ = ["SETS", "Fetched", "Inspection", "Removed", "bundled", "clean", "fetch", "inspect", "source_of"]
