# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The dependency rules of docs/DESIGN.md, held by reading includes and imports.

Each rule is a function from a tree to its violations. It is run on this project, and on a small
tree that breaks it, so that a rule that has gone blind is noticed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The engine's layers, weakest first. A file includes files of its own layer or of lower ones.
# "noun" stands for noun.c and noun.h; a name with a dot for that file only, such as a header that
# only describes data and which others than its noun's C file use.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "colibri.h",
        "base",
        "error",
        "log",
        "layout",
        "crc32",
        "sha256",
        "decimal",
        "print",
        "json",
        "file",
        "guard",
        "switch",
        "usage",
        "profile",
    ),
    ("config", "format"),
    ("kernels", "cpu"),
    ("matrix", "threads"),
    ("attention", "cache", "quantize", "rope", "router", "sampler", "scrub"),
    ("unicode", "tokenizer.h", "pretokenizer"),
    ("tokenizer", "bpe", "encoder", "decoder", "normalizer"),
    ("chat",),
    ("model",),
    ("state",),
    ("step",),
    ("heads", "experts"),
    ("transformer",),
    ("infer",),
    ("colibri",),
    (
        "main",
        "generate",
        "ids",
        "trace",
        "nll",
        "options",
        "selftest",
        "talk",
        "trial",
        "exact",
        "report",
        "schedule",
        "bench",
    ),
)

# What rendered kernels may include in quotes: rendered headers, and the layouts of blocks.
TEMPLATE_INCLUDES = re.compile(r"kernels\.h|layout\.h|vector_.*\.h")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
INTRINSICS = re.compile(r"\w*mmintrin\.h|x86(gpr)?intrin\.h|arm_\w+\.h|riscv_\w+\.h|altivec\.h")
ISA_MACRO = re.compile(
    r"\b__(AVX\w*|SSE\w*|SSSE3__|FMA__|F16C__|BMI2?__|ARM_NEON\w*|ARM_FEATURE\w*|ARM_FP\w*"
    r"|riscv_(?!xlen)\w+)"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

PRINTF = re.compile(r"\b(v?(f|d|s|sn|as)?printf)\(")

# A function at the left margin of a header or C file: its first words and its name.
FUNCTION = re.compile(r"^(?P<words>[A-Za-z_][\w *]*?[ *])(?P<name>\w+)\(", re.MULTILINE)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _code(path: Path) -> str:
    return COMMENT.sub("", _read(path))


def _sources(root: Path) -> list[Path]:
    return sorted([*(root / "src").rglob("*.c"), *(root / "src").rglob("*.h")])


def _unit(name: str) -> str:
    """What LAYERS calls a file: its own name where that stands there, otherwise its noun."""
    named = {one for layer in LAYERS for one in layer}
    return name if name in named else name.rsplit(".", 1)[0]


def _rank(unit: str) -> int | None:
    return next((rank for rank, layer in enumerate(LAYERS) if unit in layer), None)


def _quoted(path: Path) -> list[str]:
    return [match[1] for match in INCLUDE.finditer(_read(path)) if match[1]]


def unassigned_sources(root: Path) -> list[str]:
    """Every file of src/ stands in a layer."""
    return [
        f"src/{path.name} stands in no layer: add its noun to LAYERS in {Path(__file__).name}"
        for path in _sources(root)
        if _rank(_unit(path.name)) is None
    ]


def upward_includes(root: Path) -> list[str]:
    """A file of src/ includes only its own layer and lower ones."""
    found = []
    for path in _sources(root):
        rank = _rank(_unit(path.name))
        for name in _quoted(path):
            other = _rank(_unit(name))
            if other is None:
                found.append(f"src/{path.name} includes {name}, which stands in no layer")
            elif rank is not None and other > rank:
                found.append(f"src/{path.name} includes {name}, which stands above it")
    return found


def include_cycles(root: Path) -> list[str]:
    """No noun of src/ needs itself."""
    needs: dict[str, set[str]] = {}
    for path in _sources(root):
        unit = _unit(path.name)
        needs.setdefault(unit, set()).update(_unit(name) for name in _quoted(path))
        needs[unit].discard(unit)

    def reach(unit: str, seen: tuple[str, ...]) -> Iterator[str]:
        if unit in seen:
            yield " -> ".join((*seen[seen.index(unit) :], unit))
            return
        for other in sorted(needs.get(unit, ())):
            yield from reach(other, (*seen, unit))

    return sorted({cycle for unit in needs for cycle in reach(unit, ()) if cycle.startswith(unit)})


def instructions_in_src(root: Path) -> list[str]:
    """src/ includes no intrinsics and tests no ISA macro."""
    found = []
    for path in _sources(root):
        names = [match[1] or match[2] for match in INCLUDE.finditer(_read(path))]
        found += [
            f"src/{path.name} includes {name}" for name in names if INTRINSICS.fullmatch(name)
        ]
        found += [f"src/{path.name} tests {match[0]}" for match in ISA_MACRO.finditer(_code(path))]
    return found


def libc_printf(root: Path) -> list[str]:
    """src/ formats by print.h: libc's printf takes 9 KB."""
    return [
        f"src/{path.name} calls {match[1]}: see print.h"
        for path in _sources(root)
        for match in PRINTF.finditer(_code(path))
    ]


def foreign_symbols(root: Path) -> list[str]:
    """Public functions are declared in colibri.h and nowhere else; all others are clb_*."""
    public = set()
    found = []
    for path in sorted((root / "src").glob("*.h"), key=lambda path: path.name != "colibri.h"):
        for match in FUNCTION.finditer(_code(path)):
            words, name = match["words"].split(), match["name"]
            if words[0] in {"typedef", "static"}:
                continue
            if path.name == "colibri.h":
                public.add(name)
            if not name.startswith("colibri_" if path.name == "colibri.h" else "clb_"):
                found.append(f"src/{path.name} declares {name}")
    for path in (root / "src").glob("*.c"):
        for match in FUNCTION.finditer(_code(path)):
            name = match["name"]
            if name.startswith("colibri_") and name not in public:
                found.append(f"src/{path.name} defines {name}, which colibri.h does not declare")
    return found


def templates_that_know_src(root: Path) -> list[str]:
    """templates/ knows nothing of src/ but the layouts of blocks."""
    found = []
    for path in sorted((root / "templates").rglob("*")):
        if path.suffix not in {".j2", ".py"} or "__pycache__" in path.parts:
            continue
        found += [
            f"{path.relative_to(root)} includes {name}"
            for name in _quoted(path)
            if not TEMPLATE_INCLUDES.fullmatch(name)
        ]
        found += [
            f"{path.relative_to(root)} opens {match[0]}"
            for match in re.finditer(r"""["'](\.\./)*src/[^"']*["']""", _read(path))
        ]
    return found


def engine_that_knows_python(root: Path) -> list[str]:
    """The engine builds without colibri_deploy, and so never speaks of it."""
    places = [root / "meson.build", root / "meson_options.txt"]
    for folder in ("cross", "src", "templates"):
        places += [path for path in sorted((root / folder).rglob("*")) if path.is_file()]
    return [
        f"{path.relative_to(root)} speaks of colibri_deploy"
        for path in places
        if "__pycache__" not in path.parts and path.exists() and "colibri_deploy" in _read(path)
    ]


def library_that_talks(root: Path) -> list[str]:
    """Outside colibri_deploy/cli nothing prints, exits, or knows the command line."""
    found = []
    package = root / "colibri_deploy"
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if inside.parts[0] in {"cli", "engine", "__main__.py"}:
            continue
        for node in ast.walk(ast.parse(_read(path))):
            problem = _talk(node)
            if problem:
                found.append(f"colibri_deploy/{inside} {problem}")
    return found


def _talk(node: ast.AST) -> str | None:
    """What a node of a library module does that only the command line may."""
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            return "imports relatively: write the whole name"
        modules = [f"{node.module}.{alias.name}" for alias in node.names]
    for module in modules:
        if re.match(r"(click|rich|colibri_deploy\.cli)(\.|$)", module):
            return f"imports {module}"
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called in {"print", "input", "exit", "quit", "sys.exit", "os._exit"}:
            return f"calls {called}"
    if isinstance(node, ast.Raise) and node.exc is not None:
        raised = ast.unparse(node.exc)
        if raised.startswith(("SystemExit", "click.")):
            return f"raises {raised}"
    return None


Rule = Callable[[Path], list[str]]

# rule, file to plant, its content, the violation
BROKEN: tuple[tuple[Rule, str, str, str], ...] = (
    (
        unassigned_sources,
        "src/helper.c",
        "",
        "src/helper.c stands in no layer: add its noun to LAYERS in test_layers.py",
    ),
    (
        upward_includes,
        "src/json.c",
        '#include "router.h"\n',
        "src/json.c includes router.h, which stands above it",
    ),
    (
        upward_includes,
        "src/router.h",
        '#include "../cli/x.h"\n',
        "src/router.h includes ../cli/x.h, which stands in no layer",
    ),
    (include_cycles, "src/rope.h", '#include "cache.h"\n', "rope -> cache -> rope"),
    (
        instructions_in_src,
        "src/cache.c",
        "#include <immintrin.h>\n",
        "src/cache.c includes immintrin.h",
    ),
    (
        instructions_in_src,
        "src/cache.c",
        "#include <arm_neon.h>\n",
        "src/cache.c includes arm_neon.h",
    ),
    (instructions_in_src, "src/cache.c", "#ifdef __AVX2__\n#endif\n", "src/cache.c tests __AVX2__"),
    (
        instructions_in_src,
        "src/cache.c",
        "#if defined(__riscv_vector)\n#endif\n",
        "src/cache.c tests __riscv_vector",
    ),
    (libc_printf, "src/cache.c", 'printf("");', "src/cache.c calls printf: see print.h"),
    (foreign_symbols, "src/cache.h", "void add(int a);\n", "src/cache.h declares add"),
    (
        foreign_symbols,
        "src/cache.h",
        "const char *colibri_name(void);\n",
        "src/cache.h declares colibri_name",
    ),
    (
        foreign_symbols,
        "src/infer.c",
        "int colibri_more(int a)\n{\n}\n",
        "src/infer.c defines colibri_more, which colibri.h does not declare",
    ),
    (
        templates_that_know_src,
        "templates/ops/a.c.j2",
        '#include "router.h"\n',
        "templates/ops/a.c.j2 includes router.h",
    ),
    (
        templates_that_know_src,
        "templates/a.py",
        "open('../src/router.h')\n",
        "templates/a.py opens '../src/router.h'",
    ),
    (
        engine_that_knows_python,
        "meson.build",
        "run_command('python3', '-m', 'colibri_deploy')\n",
        "meson.build speaks of colibri_deploy",
    ),
    (
        library_that_talks,
        "colibri_deploy/build.py",
        "from colibri_deploy.cli import console\n",
        "colibri_deploy/build.py imports colibri_deploy.cli.console",
    ),
    (
        library_that_talks,
        "colibri_deploy/build.py",
        "from colibri_deploy import cli\n",
        "colibri_deploy/build.py imports colibri_deploy.cli",
    ),
    (
        library_that_talks,
        "colibri_deploy/families/x.py",
        "import click\n",
        "colibri_deploy/families/x.py imports click",
    ),
    (
        library_that_talks,
        "colibri_deploy/build.py",
        "def f():\n    print('x')\n",
        "colibri_deploy/build.py calls print",
    ),
    (
        library_that_talks,
        "colibri_deploy/build.py",
        "import sys\nsys.exit(1)\n",
        "colibri_deploy/build.py calls sys.exit",
    ),
    (
        library_that_talks,
        "colibri_deploy/build.py",
        "raise SystemExit(1)\n",
        "colibri_deploy/build.py raises SystemExit(1)",
    ),
)

RULES: tuple[Rule, ...] = tuple(dict.fromkeys(rule for rule, *_ in BROKEN))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule, root: Path) -> None:
    assert rule(root) == []


@pytest.fixture
def sound_tree(tmp_path: Path) -> Path:
    """A small tree that keeps every rule."""
    files = {
        "meson.build": "project('colibri', 'c')\n",
        "src/colibri.h": "typedef struct colibri_model colibri_model;\n"
        "int colibri_infer(const colibri_model *model,\n                  int n);\n",
        "src/base.h": '#include "colibri.h"\n'
        "static inline int twice(int a)\n{\n    return 2 * a;\n}\n",
        "src/json.c": '#include "json.h"\n#include <cpuid.h>\n',
        "src/json.h": '#include "base.h"\n// __AVX2__ is tested in templates/ only\n',
        "src/cache.h": '#include "rope.h"\nvoid clb_add(int a);\n',
        "src/infer.c": '#include "cache.h"\nstatic int helper(int a)\n{\n}\n'
        "int colibri_infer(const colibri_model *model, int n)\n{\n}\n",
        "templates/ops/add.c.j2": '#include "layout.h"\n#include <immintrin.h>\n',
        "templates/render.py": "import sys\nprint(sys.argv)\n",
        "colibri_deploy/__main__.py": "from colibri_deploy.cli import main\n",
        "colibri_deploy/cli/__init__.py": "import click\nprint(click)\n",
        "colibri_deploy/build.py": "import sys\nfrom colibri_deploy import targets\n",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_sound_tree_keeps_the_rule(rule: Rule, sound_tree: Path) -> None:
    assert rule(sound_tree) == []


@pytest.mark.parametrize(("rule", "name", "content", "violation"), BROKEN)
def test_a_violation_is_found(
    rule: Rule, name: str, content: str, violation: str, sound_tree: Path
) -> None:
    path = sound_tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    assert violation in rule(sound_tree)
