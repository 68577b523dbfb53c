"""Pickles read as data: a machine that builds plain values, and where a pickle asks for code only notes its name.

Nothing is imported, called or constructed. A global becomes a `Global`, a call of one an `Object` that holds the
arguments. Time and memory are bounded by the length of the pickle: a memo index or a length in it allocates nothing,
and no value is hashed or compared by what it contains.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DIGITS = 1000


class PickleFormatError(Exception):
    """The bytes are not a pickle that this machine reads; callers say of which file."""


class ForbiddenGlobalError(PickleFormatError):
    """The pickle names a global that it has no business with."""


class Global(NamedTuple):
    """A name that a pickle asks for, say ``torch.Size``."""

    module: str
    name: str

    def __str__(self) -> str:
        return shown(f"{self.module}.{self.name}")


class PersistentId(NamedTuple):
    """A reference to what lies outside the pickle: for torch, a storage."""

    value: Any


class Object:
    """What a pickle would make by calling `callee`; compared and hashed by identity.

    Attributes:
        callee: Usually a `Global`.
        args: Usually a tuple.
        items: Of what stands for a container, say an OrderedDict, its content as a dict or list; else None.
        state: The attributes that were set afterwards; None where none were.
    """

    __slots__ = ("args", "callee", "items", "state")

    def __init__(self, callee: Any, args: Any) -> None:
        self.callee, self.args = callee, args
        self.items: Any = None
        self.state: Any = None

    @property
    def name(self) -> Global | None:
        """The global that is called; None where it is something else."""
        return self.callee if type(self.callee) is Global else None


class Key:
    """A key of a dict that is neither text nor number, hashed by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def parse_pickle(data: bytes, is_allowed: Callable[[str, str], bool] | None = None) -> tuple[Any, tuple[Global, ...]]:
    """The pickle as plain values, `Global`, `Object`, `PersistentId` and, as keys of dicts, `Key`; and its globals.

    Args:
        data: One pickle, of protocol 2 to 5.
        is_allowed: Whether a global, by module and name, may occur; any may when None.

    Raises:
        ForbiddenGlobalError: One occurs that may not.
        PickleFormatError: `data` is no such pickle.
    """
    machine = _Machine(data, is_allowed)
    try:
        return machine.run(), tuple(machine.globals.values())
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, TypeError, AttributeError, ValueError) as error:
        where = f"at byte {machine.at}"
        raise PickleFormatError(f"{where}: {type(error).__name__} ({shown(error)})") from None


class _Machine:
    """The stack, the memo, and a method for each operation."""

    def __init__(self, data: bytes, is_allowed: Callable[[str, str], bool] | None) -> None:
        self.data, self.at, self.is_allowed = data, 0, is_allowed
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.globals: dict[tuple[str, str], Global] = {}

    def run(self) -> Any:
        """Execute up to the end, which must be the end of the data.

        What nearly all of a large ``.metadata`` consists of is done here, without a call for each operation.
        """
        data, stack, marks, memo, others = self.data, self.stack, self.marks, self.memo, _OPERATIONS
        at = 0
        while True:
            code = data[at]
            at += 1
            if code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == 0x81 or code == 0x52:  # NEWOBJ, REDUCE
                args = stack.pop()
                stack[-1] = Object(stack[-1], args)
            elif code == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif code == 0x28:  # MARK
                marks.append(len(stack))
            elif code == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif code == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif code == 0x85:  # TUPLE1
                stack[-1] = (stack[-1],)
            elif code == 0x86:  # TUPLE2
                second = stack.pop()
                stack[-1] = (stack[-1], second)
            else:
                self.at = at
                if code == 0x2E:  # STOP
                    return self.result()
                operation = others.get(code)
                if operation is None:
                    raise PickleFormatError(f"at byte {at - 1}: operation 0x{code:02x}, which no checkpoint needs")
                operation(self)
                at = self.at

    def result(self) -> Any:
        if self.at != len(self.data) or len(self.stack) != 1:
            raise PickleFormatError(f"it ends at byte {self.at} of {len(self.data)}, {len(self.stack)} values left")
        return self.stack.pop()

    def take(self, length: int) -> bytes:
        begin = self.at
        end = begin + length
        if end > len(self.data):
            raise PickleFormatError(f"at byte {begin}: it ends, and {length} bytes should follow")
        self.at = end
        return self.data[begin:end]

    def number(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def pop_to_mark(self) -> list[Any]:
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def find(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise PickleFormatError(f"at byte {self.at}: a global whose name is no text")
        found = self.globals.get((module, name))
        if found is None:
            found = Global(module, name)
            if self.is_allowed is not None and not self.is_allowed(module, name):
                raise ForbiddenGlobalError(str(found))
            self.globals[found] = found
        self.stack.append(found)

    def top(self, kind: type) -> Any:
        """The container on top of the stack."""
        value = self.stack[-1]
        if type(value) is Object:
            if type(value.items) is not kind:
                value.items = kind()
            return value.items
        if type(value) is not kind:
            raise PickleFormatError(f"at byte {self.at}: {type(value).__name__} in place of {kind.__name__}")
        return value


def _key(value: Any) -> Any:
    kind = type(value)
    return value if kind in (str, int, Object, bool, float, bytes) or value is None else Key(value)


def _set_items(machine: _Machine) -> None:
    values = machine.pop_to_mark()
    if len(values) % 2:
        raise PickleFormatError(f"at byte {machine.at}: a key without a value")
    target = machine.top(dict)
    rest = iter(values)
    for key in rest:
        kind = type(key)
        target[key if kind is str or kind is Object else _key(key)] = next(rest)


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.top(dict)[_key(key)] = value


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    machine.top(list).append(value)


def _extend(machine: _Machine) -> None:
    values = machine.pop_to_mark()
    machine.top(list).extend(values)


def _call_with_keywords(machine: _Machine) -> None:
    keywords, args, callee = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    made = Object(callee, args)
    made.state = keywords
    machine.stack.append(made)


def _build(machine: _Machine) -> None:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if type(target) is not Object:
        raise PickleFormatError(f"at byte {machine.at}: a state for {type(target).__name__}")
    target.state = state if target.state is None else (target.state, state)


def _put(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


def _tuple_of_3(machine: _Machine) -> None:
    *_, first, second, third = machine.stack[-3:]
    machine.stack[-3:] = [(first, second, third)]


def _long(machine: _Machine, length: int) -> None:
    if length < 0 or length > _MAX_DIGITS:
        raise PickleFormatError(f"at byte {machine.at}: an integer of {length} bytes")
    machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))


def _protocol(machine: _Machine) -> None:
    if not 2 <= machine.take(1)[0] <= 5:
        raise PickleFormatError("a protocol other than 2 to 5")


def _stack_global(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.find(module, name)


_U8, _U16, _I32, _U32, _U64 = (struct.Struct(layout) for layout in ("<B", "<H", "<i", "<I", "<Q"))
_DOUBLE = struct.Struct(">d")


def _push(read: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(read(machine))


def _text(layout: struct.Struct) -> Callable[[_Machine], None]:
    return _push(lambda machine: machine.take(machine.number(layout)).decode("utf-8", "surrogatepass"))


def _bytes(layout: struct.Struct) -> Callable[[_Machine], None]:
    return _push(lambda machine: machine.take(machine.number(layout)))


_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    ord(code): operation
    for code, operation in (
        ("\x80", _protocol),
        ("\x95", lambda machine: machine.number(_U64)),  # FRAME: only tells how to read ahead
        ("0", lambda machine: machine.stack.pop()),
        ("1", lambda machine: machine.pop_to_mark()),
        ("2", lambda machine: machine.stack.append(machine.stack[-1])),
        ("N", lambda machine: machine.stack.append(None)),
        ("\x88", lambda machine: machine.stack.append(True)),
        ("\x89", lambda machine: machine.stack.append(False)),
        ("M", _push(lambda machine: machine.number(_U16))),
        ("J", _push(lambda machine: machine.number(_I32))),
        ("\x8a", lambda machine: _long(machine, machine.number(_U8))),
        ("\x8b", lambda machine: _long(machine, machine.number(_I32))),
        ("G", _push(lambda machine: machine.number(_DOUBLE))),
        ("X", _text(_U32)),
        ("\x8c", _text(_U8)),
        ("\x8d", _text(_U64)),
        ("C", _bytes(_U8)),
        ("B", _bytes(_U32)),
        ("\x8e", _bytes(_U64)),
        ("\x96", _bytes(_U64)),  # a bytearray
        ("]", lambda machine: machine.stack.append([])),
        ("\x8f", _push(lambda machine: Object(Global("builtins", "set"), ()))),
        ("\x91", _push(lambda machine: Object(Global("builtins", "frozenset"), (machine.pop_to_mark(),)))),
        ("t", _push(lambda machine: tuple(machine.pop_to_mark()))),
        ("\x87", _tuple_of_3),
        ("a", _append),
        ("e", _extend),
        ("\x90", _extend),  # to a set
        ("s", _set_item),
        ("u", _set_items),
        ("c", lambda machine: machine.find(machine.line(), machine.line())),
        ("\x93", _stack_global),
        ("\x92", _call_with_keywords),
        ("b", _build),
        ("Q", _push(lambda machine: PersistentId(machine.stack.pop()))),
        ("q", lambda machine: _put(machine, machine.number(_U8))),
        ("r", lambda machine: _put(machine, machine.number(_U32))),
    )
}
