"""Describes the machine's devices, the chosen kernel with the reason for it, and the memory that a model would need."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import weight_formats
from glgpt.gl.device import Device, list_devices
from glgpt.inference.programs import describe as describe_program
from glgpt.inference.programs import fitting_program
from glgpt.models.context import first_context
from glgpt.tuning.kernel_selection import COLUMNS, DeviceSettings, as_dict


def describe(
    model: str | None = None,
    dtype: str | None = None,
    *,
    context: int | None = None,
    max_texture_memory: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Returns all devices, the limits and the kernel of the chosen one, and the texture memory that `model` would need.

    `options` are the fields of `DeviceSettings`. The model's files are checked, but its weights are not loaded. Raises
    GlgptError if the files are invalid, or if the model would exceed the device's limits or `max_texture_memory`.
    """
    settings = DeviceSettings(**options)
    chosen, choice = settings.open()
    found: dict[str, Any] = {
        "devices": [d if isinstance(d, str) else f"{d.index}: {d.renderer}" for d in list_devices()],
        "device": _device(chosen),
        "limits": asdict(chosen.limits),
        "choice": as_dict(choice),
    }
    if model is not None:
        with Checkpoint.open(model) as checkpoint:
            positions = first_context(checkpoint.config, chosen.limits, context)
            config = checkpoint.config.with_context(positions, settings.half_caches)
            limits, kernel = chosen.limits, choice.kernel
            formats = weight_formats(checkpoint, dtype)
            program = fitting_program(config, checkpoint.path, limits, kernel, formats, max_texture_memory)
            found["model"] = {
                "name": checkpoint.name,
                "path": str(checkpoint.path),
                "dtype": str(formats),
                "context": config.context,
                "config": config.fields(),
                **describe_program(program),
            }
    return found


def _device(device: Device) -> dict[str, Any]:
    return {
        "index": device.index,
        "renderer": device.renderer,
        "version": device.version,
        "software": device.software,
    }


def render(found: dict[str, Any]) -> str:
    """Formats the result of `describe` as text."""
    device, choice = found["device"], found["choice"]
    lines = ["EGL devices", *(f"  {line}" for line in found["devices"])]
    lines += [
        f"drawing on  {device['index']}: {device['renderer']}{' (software)' if device['software'] else ''}",
        f"driver      {device['version']}",
        "limits      " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found["limits"].items()),
        f"kernel      {choice['label']} with {choice['fetch']}, {choice['storage']} texels: {choice['why']}",
    ]
    probe = sorted(choice["probe_ms"].items(), key=lambda item: item[1])
    lines += [f"  {name:<26} {ms:8.2f} ms" for name, ms in probe if name.split()[0] not in COLUMNS]
    times = ", ".join(f"{n} {choice['probe_ms'][n + ' ' + choice['fetch']]:.2f} ms" for n in COLUMNS)
    lines.append(f"one-row products: {'contiguous' if choice['contiguous'] else 'strided'} columns ({times})")
    if "model" in found:
        model = found["model"]
        roles = ", ".join(f"{role} {_mib(n)}" for role, n in model["bytes_by_role"].items())
        lines += [
            f"model       {model['name']} ({model['dtype']}), {model['path']}",
            f"  context   {model['context']} of {model['config']['n_positions']} positions (--context)",
            f"  textures  {_mib(model['texture_bytes'])}: {roles}",
            "  passes    " + ", ".join(f"{name} {n}" for name, n in model["passes"].items()),
        ]
    return "\n".join(lines)


def _mib(n: int) -> str:
    return f"{n / 2**20:.1f} MiB"
