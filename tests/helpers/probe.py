"""Caches probe results for tests, since a probe takes seconds and each process repeats it while the machine is busy."""

from __future__ import annotations

from glgpt.errors import DeviceError
from glgpt.gl.device import Options, open_device
from glgpt.program.kernel import KERNELS
from glgpt.system.files import write_json
from glgpt.tuning.kernel_selection import STORAGES, cache_file, measured_names, probe_key, variants

FASTEST = "8x4-contiguous textureLod"  # the fastest in most probes on a slow processor
MS = {"contiguous": 17.0, "strided": 33.0, FASTEST: 5.0}
TIMES = {name: MS.get(name, MS.get(name.split()[0], 10.0)) for name in measured_names(variants(KERNELS.values()))}


def remember_probe() -> None:
    """Writes `TIMES` into the cache as the probe results of the software device, if there is one."""
    try:
        device = open_device("software")
    except DeviceError:
        return  # tests that need the device report the error
    keys = [probe_key(device, Options(device.header, storage=storage)) for storage in STORAGES]
    cache_file().parent.mkdir(parents=True, exist_ok=True)
    write_json(cache_file(), dict.fromkeys(keys, TIMES))
