"""A device like a GPU, for machines without one: it computes as the CPU does, and refuses what a GPU would refuse.

Importing this registers the device "pretend" with torch, for all of the process; so it belongs into one of its own.
Refused are tensors of two devices in one operation, numpy's view of the device's memory, and sharing of it, with the
exceptions that CUDA makes: copies, numbers without dimensions, and places that index.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME: Final = "pretend"
COPIES: Final = {"aten::copy_", "aten::_copy_from", "aten::_to_copy"}
INDEXING: Final = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}  # places are second


class OnDevice(Tensor):
    """A tensor whose memory only the device may read: `inner` has it."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        with torch.inference_mode(False):  # a view made in it, of what was not, is no inference tensor
            outer: OnDevice = Tensor._make_wrapper_subclass(
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=f"{NAME}:0",
            )
        outer.inner = inner
        return outer

    @classmethod
    def __torch_dispatch__(cls, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, *args, **(kwargs or {}))


class Crossing(TorchFunctionMode):
    """Ways between lists and tensors for which torch does not ask the device."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            return function(*args, **kwargs | {"device": "cpu"}).to(kwargs["device"])
        if function is Tensor.tolist:
            return args[0].cpu().tolist()
        return function(*args, **kwargs)


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """On the CPU. Raises: RuntimeError where a GPU would."""
    parts = operation.decompose(*args, **kwargs)
    if parts is not NotImplemented:  # inference mode hands over whole what is made of several operations
        return parts
    name = operation._schema.name
    _refuse_a_mixture(name, (args[0], *args[2:]) if name in INDEXING else args, kwargs)
    inner_kwargs = tree_map(_unwrapped, kwargs)
    is_for_cpu = name in COPIES and torch.device(kwargs.get("device") or NAME).type == "cpu"
    if kwargs.get("device") is not None:
        inner_kwargs["device"] = torch.device("cpu")
    found = operation(*tree_map(_unwrapped, args), **inner_kwargs)
    written = [
        kwargs.get(each.name, args[place] if place < len(args) else None)
        for place, each in enumerate(operation._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    if written:
        return written[0] if len(written) == 1 else tuple(written)
    return found if is_for_cpu else tree_map(_wrapped, found)


def _refuse_a_mixture(name: str, args: Any, kwargs: Any) -> None:
    if name in COPIES:
        return
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    on_device = [each for each in tensors if isinstance(each, OnDevice)]
    strangers = [each for each in tensors if not isinstance(each, OnDevice) and each.dim()]
    if on_device and strangers:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, found {NAME} and cpu")


def _unwrapped(thing: Any) -> Any:
    return thing.inner if isinstance(thing, OnDevice) else thing


def _wrapped(thing: Any) -> Any:
    return OnDevice(thing) if isinstance(thing, Tensor) and not isinstance(thing, OnDevice) else thing


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
_library = torch.library.Library("_", "IMPL")
_library.fallback(_run, "PrivateUse1")
