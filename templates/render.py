# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the kernels. Meson calls it; so can you, to read what is compiled:

python3 templates/render.py kernel int_mm avx2 /dev/stdout
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import networks
from kernels import COLD_OPS, KERNELS, LEVELS, OPS

HERE = Path(__file__).resolve().parent

_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    autoescape=False,
)


def _facts(level: str) -> dict[str, Any]:
    """What isa/<level>.j2 says of itself.

    cflags: of the compiler; needs: CPU features beyond those of the levels before it, each a name
    and leaf, subleaf, register, bit (struct clb_feature); tokens: how many share one tile;
    abreast: whether half as many go over two tiles of floats, where no more are left; tiles: how
    many one token walks side by side; prefetch: about how many bytes ahead of its loads one token
    asks for weights, 0: never; halves: the type of the sums where tokens walk half a tile at a
    time, for each type of weights; many: the same where twice as many tokens do, besides; running:
    whether addresses run along with the columns of tokens, not computed for each block; whole:
    whether one token takes whole blocks, not lines; widen: whether floats are widened once for all
    tokens, since that takes long; ops: which operations it has, all but the cold ones if it does
    not say.
    """
    facts: dict[str, Any] = _environment.get_template(f"isa/{level}.j2").module.facts  # type: ignore[attr-defined]
    return facts


def _ops(level: str) -> list[str]:
    ops: list[str] = _facts(level).get("ops", [op for op in OPS if op not in COLD_OPS])
    weakest = any(levels[0] == level for levels in LEVELS.values())
    return ops + (list(COLD_OPS) if weakest else [])


def _render(template: str, **context: object) -> str:
    table = {kernel.name: kernel for kernel in KERNELS}
    text = _environment.get_template(template).render(kernels=table, **context)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def vector(level: str) -> str:
    """The header with the vocabulary of a level."""
    body = _environment.get_template(f"isa/{level}.j2").render().strip()
    return _render("vector.h.j2", level=level, vocabulary=body)


def kernel(op: str, level: str) -> str:
    """The C file with the kernels of one operation at one level."""
    body = _render(f"ops/{op}.c.j2", level=level, facts=_facts(level)).strip()
    return _render("kernel.c.j2", op=op, level=level, body=body)


def header() -> str:
    """kernels.h: the struct of function pointers."""
    return _render("kernels.h.j2")


def router_select() -> str:
    """The C file that selects the experts with the largest router logits."""
    block, widths = 8, (1, 2, 4)
    values = [f"v[{i}]" for i in range(block)]
    best = {k: [f"b[{i}]" for i in range(k)] for k in widths}
    return _render(
        "router_select.c.j2",
        block=block,
        widths=widths,
        widest=max(widths),
        largest={k: networks.largest(values, k) for k in widths},
        merge={k: networks.merge(best[k], values[:k]) for k in widths},
        by_expert=networks.sort(best[max(widths)]),
    )


def table(arch: str, *levels: str) -> str:
    """kernels.c: the levels in this build, and what each needs."""
    kernels_of = {level: [k for k in KERNELS if k.op in _ops(level)] for level in levels}
    facts = {level: _facts(level) for level in levels}
    return _render("kernels.c.j2", arch=arch, levels=levels, kernels_of=kernels_of, facts=facts)


def plan(arch: str, wanted: str) -> str:
    """A line `level;flag flag;op op` for each level to build, weakest first.

    `wanted` is a comma-separated choice of levels, or empty for all of the architecture.
    """
    known = LEVELS.get(arch, ("scalar",))
    chosen = [name for name in wanted.split(",") if name]
    for name in chosen:
        if name not in known:
            raise SystemExit(f"-Disas={name}: {arch} has the levels {', '.join(known)}")
    if chosen and known[0] not in chosen:
        raise SystemExit(f"-Disas={wanted}: the level {known[0]} must be there, others build on it")
    return "".join(
        f"{level};{' '.join(_facts(level)['cflags'])};{' '.join(_ops(level))}\n"
        for level in known
        if not chosen or level in chosen
    )


def main(args: list[str]) -> None:
    """The last argument is the output file, except for `plan`, which prints."""
    if args[0] == "plan":
        sys.stdout.write(plan(*args[1:]))
        return
    makers: dict[str, Callable[..., str]] = {
        "vector": vector,
        "kernel": kernel,
        "header": header,
        "router_select": router_select,
        "table": table,
    }
    Path(args[-1]).write_text(makers[args[0]](*args[1:-1]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
