"""Compiles kernels for a GPU, which needs none: a program of its own, outside Triton's interpreter.

Reads JSON from standard input: a list of launches ``[module, kernel, arguments, options]``, of each
argument that is no option its type and whether it is a multiple of 16. Writes the PTX of each.
"""

from __future__ import annotations

import importlib
import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

#: Options of a launch that are not the kernel's.
LAUNCH = ("num_warps", "enable_fp_fusion")


def compiled(
    module: str, name: str, arguments: list[tuple[str, bool]], options: dict[str, object]
) -> str:
    """PTX of one kernel for compute capability 9.0; that it can be assembled is seen, too."""
    kernel = getattr(importlib.import_module(module), name)
    launch = {key: options.pop(key) for key in LAUNCH if key in options}
    given = dict(zip(kernel.arg_names, arguments, strict=False))
    if set(given) | set(options) != set(kernel.arg_names) or set(given) & set(options):
        raise TypeError(f"{name} takes {kernel.arg_names}, not {[*given, *options]}")
    signature, constants, attributes = {}, dict(options), {}
    for i, parameter in enumerate(kernel.params):
        kind, multiple = given.get(parameter.name, ("constexpr", False))
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants.setdefault(parameter.name, None)
        elif multiple and not parameter.do_not_specialize:
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    result = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launch)
    return str(result.asm["ptx"])


if __name__ == "__main__":
    json.dump([compiled(*launch) for launch in json.load(sys.stdin)], sys.stdout)
