# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a pickle without executing it.

A pickle is a program for a small stack machine; Python's own runs whatever functions it names.
This one imports and calls nothing: what a pickle names becomes a `Global`, what it would have
made an `Inert`, and only lists, dicts, tuples, sets and plain values are real. The one that calls
`read_pickle` decides what becomes of the few globals that it knows, such as those of tensors.

Every opcode adds a bounded amount to what is in memory, so the size of the pickle bounds it. The
result may share parts, or contain itself: never walk down it without remembering where one was.
"""

from __future__ import annotations

import dataclasses
import pickletools
import re
from collections.abc import Callable
from typing import Any, BinaryIO, TypeAlias

MAX_BYTES = 100_000_000

# Modules of Python that a checkpoint has no business with: they run programs or code, or reach
# the system. Nothing of them would be called anyway, but whoever named them meant harm.
_HARMFUL = re.compile(
    r"(os|posix|nt|sys|subprocess|commands|pty|shutil|socket|runpy|importlib|imp|ctypes|code"
    r"|codeop|pdb|bdb|timeit|webbrowser|pickle|_pickle|marshal|asyncio|multiprocessing|types)"
    r"(\..*)?",
    re.DOTALL,
)
_BUILTINS = ("builtins", "__builtin__")
_HARMLESS_BUILTINS = re.compile(
    r"bool|bytearray|bytes|complex|dict|float|frozenset|getattr|int|list|long|object|range|set"
    r"|slice|str|tuple|type|unicode|xrange"
)
_HARMLESS = frozenset({"types.SimpleNamespace"})


class PickleError(Exception):
    """What is wrong with a pickle."""


@dataclasses.dataclass(frozen=True, eq=False)
class Global:
    """The name of a class or function; it was not looked up."""

    module: str
    name: str

    @property
    def full_name(self) -> str:
        """`module.name`."""
        return f"{self.module}.{self.name}"


@dataclasses.dataclass(eq=False)
class Inert:
    """What a global would have made of `args`; nothing was called.

    `state` is what its attributes would be, usually a dict; `contents` what would have been
    appended to it, or pairs of key and value that would have been set.
    """

    made_by: Global
    args: tuple[Any, ...] = dataclasses.field(repr=False)
    state: Any = dataclasses.field(default=None, repr=False)
    contents: list[Any] = dataclasses.field(default_factory=list, repr=False)


# Makes something of a known global and its arguments; NotImplemented: it becomes an `Inert`.
Make: TypeAlias = Callable[[Global, tuple[Any, ...]], Any]
# Makes something of a persistent id.
Load: TypeAlias = Callable[[Any], Any]


def read_pickle(file: BinaryIO, make: Make, load: Load) -> Any:
    """The value of the pickle at the file's position, which is then behind it.

    Raises PickleError if it is damaged, or names what no checkpoint needs.
    """
    machine = _Machine(make, load)
    start = file.tell()
    try:
        for opcode, argument, position in pickletools.genops(file):
            if (position or 0) - start > MAX_BYTES:
                raise PickleError(f"is longer than {MAX_BYTES:,} bytes")
            if opcode.name == "STOP":
                return machine.pop()
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PickleError(f"is damaged: {error}") from None
    raise PickleError("is damaged: it does not stop")


class _Machine:
    """Stack, marks and memo."""

    def __init__(self, make: Make, load: Load) -> None:
        self._make = make
        self._load = load
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """One opcode. Errors of any kind mean that the pickle is damaged."""
        if _VALUES.fullmatch(name):
            self._push(argument)
        elif name in _CONSTANTS:
            self._push(_CONSTANTS[name])
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise PickleError(f"has the opcode {name}, which no checkpoint needs")

    def pop(self) -> Any:
        if self._marks and self._marks[-1] == len(self._stack):
            raise ValueError("a mark where a value is expected")
        return self._stack.pop()

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _take(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def _to_mark(self) -> list[Any]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _top(self) -> Any:
        value = self.pop()
        self._push(value)
        return value

    def _mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def _pop_mark(self, _: Any) -> None:
        self._to_mark()

    def _drop(self, _: Any) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self.pop()

    def _dup(self, _: Any) -> None:
        self._push(self._top())

    def _get(self, argument: Any) -> None:
        self._push(self._memo[int(argument)])

    def _put(self, argument: Any) -> None:
        self._memo[int(argument)] = self._top()

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._top()

    # Containers

    def _tuple(self, _: Any) -> None:
        self._push(tuple(self._to_mark()))

    def _empty_list(self, _: Any) -> None:
        self._push([])

    def _empty_dict(self, _: Any) -> None:
        self._push({})

    def _empty_set(self, _: Any) -> None:
        self._push(set())

    def _list(self, _: Any) -> None:
        self._push(self._to_mark())

    def _dict(self, _: Any) -> None:
        values = self._to_mark()
        self._push({})
        self._set(values)

    def _frozenset(self, _: Any) -> None:
        self._push(frozenset(map(_key, self._to_mark())))

    def _append(self, _: Any) -> None:
        self._extend([self.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._to_mark())

    def _add_items(self, _: Any) -> None:
        values = self._to_mark()
        target = self._top()
        if type(target) is set:
            target.update(map(_key, values))
        else:
            self._extend(values)

    def _extend(self, values: list[Any]) -> None:
        target = self._top()
        if isinstance(target, Inert):
            target.contents.extend(values)
        elif type(target) is list:
            target.extend(values)
        else:
            raise TypeError(f"values are appended to a {type(target).__name__}")

    def _set_item(self, _: Any) -> None:
        self._set(self._take(2))

    def _set_items(self, _: Any) -> None:
        self._set(self._to_mark())

    def _set(self, values: list[Any]) -> None:
        pairs = list(zip(values[::2], values[1::2], strict=True))
        target = self._top()
        if isinstance(target, Inert):
            target.contents.extend(pairs)
        elif type(target) is dict:
            target.update((_key(key), value) for key, value in pairs)
        else:
            raise TypeError(f"keys are set in a {type(target).__name__}")

    # What Python would import and call

    def _global(self, argument: str) -> None:
        module, name = argument.split(" ", 1)
        self._push(_global(module, name))

    def _stack_global(self, _: Any) -> None:
        module, name = self._take(2)
        self._push(_global(module, name))

    def _inst(self, argument: str) -> None:
        module, name = argument.split(" ", 1)
        self._push(self._made(_global(module, name), tuple(self._to_mark())))

    def _obj(self, _: Any) -> None:
        maker, *args = self._to_mark()
        self._push(self._made(maker, tuple(args)))

    def _reduce(self, _: Any) -> None:
        maker, args = self._take(2)
        self._push(self._made(maker, args))

    def _new_with_keywords(self, _: Any) -> None:
        maker, args, keywords = self._take(3)
        self._push(self._made(maker, (*args, keywords)))

    def _made(self, maker: Any, args: Any) -> Any:
        if not isinstance(maker, Global | Inert) or type(args) is not tuple:
            raise TypeError(f"a {type(maker).__name__} is called")
        if isinstance(maker, Inert):  # what a function returned, such as a partial
            return Inert(maker.made_by, args)
        made = self._make(maker, args)
        return Inert(maker, args) if made is NotImplemented else made

    def _build(self, _: Any) -> None:
        state = self.pop()
        target = self._top()
        if isinstance(target, Inert):
            target.state = state
        elif type(target) is not dict:  # attributes of an ordered dict, such as `_metadata`
            raise TypeError(f"a {type(target).__name__} is given attributes")

    def _persistent(self, argument: Any) -> None:
        self._push(self._load(argument))

    def _stack_persistent(self, _: Any) -> None:
        self._push(self._load(self.pop()))


def _key(value: Any) -> Any:
    """A key of a dict: a plain one, whose hash takes no long time."""
    plain = (str, bytes, int, float, bool, type(None), Global)
    if isinstance(value, plain):
        return value
    if type(value) is tuple and all(isinstance(one, plain) for one in value):
        return value
    raise TypeError(f"a {type(value).__name__} is used as a key")


def _global(module: Any, name: Any) -> Global:
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError("a global without a name")
    found = Global(module, name)
    harmful = _HARMFUL.fullmatch(module) is not None
    if module in _BUILTINS:
        harmful = _HARMLESS_BUILTINS.fullmatch(name) is None
    if harmful and found.full_name not in _HARMLESS:
        raise PickleError(
            f"would run {found.full_name}, which no checkpoint needs; nothing was run. "
            "Do not open this file with PyTorch"
        )
    return found


_VALUES = re.compile(
    r"INT|BININT[12]?|LONG[14]?|FLOAT|BINFLOAT|(SHORT_)?BINSTRING|STRING"
    r"|(SHORT_)?BINBYTES|BINBYTES8|BYTEARRAY8|UNICODE|(SHORT_)?BINUNICODE|BINUNICODE8"
)
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine._push(tuple(machine._take(count)))


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark,
    "POP": _Machine._drop,
    "POP_MARK": _Machine._pop_mark,
    "DUP": _Machine._dup,
    "GET": _Machine._get,
    "BINGET": _Machine._get,
    "LONG_BINGET": _Machine._get,
    "PUT": _Machine._put,
    "BINPUT": _Machine._put,
    "LONG_BINPUT": _Machine._put,
    "MEMOIZE": _Machine._memoize,
    "TUPLE": _Machine._tuple,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "EMPTY_LIST": _Machine._empty_list,
    "LIST": _Machine._list,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "EMPTY_DICT": _Machine._empty_dict,
    "DICT": _Machine._dict,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "EMPTY_SET": _Machine._empty_set,
    "ADDITEMS": _Machine._add_items,
    "FROZENSET": _Machine._frozenset,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "INST": _Machine._inst,
    "OBJ": _Machine._obj,
    "REDUCE": _Machine._reduce,
    "NEWOBJ": _Machine._reduce,
    "NEWOBJ_EX": _Machine._new_with_keywords,
    "BUILD": _Machine._build,
    "PERSID": _Machine._persistent,
    "BINPERSID": _Machine._stack_persistent,
}
