"""What each operation of a pickle does to the machine that reads it as data."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from resumable_data.checkpoint.files.pickled import Global, Key, Object, PersistentId, PickleFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable_data.checkpoint.files.pickles import Machine

_MAX_DIGITS = 1000


class SparseMemo(dict[int, Any]):
    """The memo of a pickle whose indices are not one after another: an index allocates nothing."""

    def append(self, value: Any) -> None:
        """Remember a value under the number of those remembered."""
        self[len(self)] = value


def _key(value: Any) -> Any:
    kind = type(value)
    return value if kind in (str, int, Object, bool, float, bytes) or value is None else Key(value)


def set_items(machine: Machine) -> None:
    """Put what lies above the mark, keys and values by turns, into the dict below it."""
    stack, begin = machine.stack, machine.marks.pop()
    values = stack[begin:]
    del stack[begin:]
    if len(values) % 2:
        raise PickleFormatError(f"at byte {machine.at}: a key without a value")
    target = stack[-1]
    if type(target) is not dict:
        target = machine.top(dict)
    rest = iter(values)
    for key in rest:
        kind = type(key)
        target[key if kind is str or kind is Object else _key(key)] = next(rest)


def _set_item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.top(dict)[_key(key)] = value


def _append(machine: Machine) -> None:
    value = machine.stack.pop()
    machine.top(list).append(value)


def _extend(machine: Machine) -> None:
    values = machine.pop_to_mark()
    machine.top(list).extend(values)


def _call_with_keywords(machine: Machine) -> None:
    keywords, args, callee = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    made = Object(callee, args)
    made.state = keywords
    machine.stack.append(made)


def build(machine: Machine) -> None:
    """Give the object on top its attributes."""
    state = machine.stack.pop()
    target = machine.stack[-1]
    if type(target) is not Object:
        raise PickleFormatError(f"at byte {machine.at}: a state for {type(target).__name__}")
    target.state = state if target.state is None else (target.state, state)


def _put(machine: Machine, index: int) -> None:
    if type(machine.memo) is list:
        if index == len(machine.memo):
            machine.memo.append(machine.stack[-1])
            return
        if index > len(machine.memo):
            machine.memo = SparseMemo(enumerate(machine.memo))
    machine.memo[index] = machine.stack[-1]


def _tuple_of_3(machine: Machine) -> None:
    *_, first, second, third = machine.stack[-3:]
    machine.stack[-3:] = [(first, second, third)]


def _long(machine: Machine, length: int) -> None:
    if length < 0 or length > _MAX_DIGITS:
        raise PickleFormatError(f"at byte {machine.at}: an integer of {length} bytes")
    machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))


def _protocol(machine: Machine) -> None:
    if not 2 <= machine.take(1)[0] <= 5:
        raise PickleFormatError("a protocol other than 2 to 5")


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.find(module, name)


_U8, _I32, _U32, _U64 = (struct.Struct(layout) for layout in ("<B", "<i", "<I", "<Q"))
_DOUBLE = struct.Struct(">d")


def _push(read: Callable[[Machine], Any]) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(read(machine))


def _text(layout: struct.Struct) -> Callable[[Machine], None]:
    return _push(lambda machine: machine.take(machine.number(layout)).decode("utf-8", "surrogatepass"))


def _bytes(layout: struct.Struct) -> Callable[[Machine], None]:
    return _push(lambda machine: machine.take(machine.number(layout)))


OPERATIONS: dict[int, Callable[[Machine], None]] = {
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
        ("b", build),
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
        ("c", lambda machine: machine.find(machine.line(), machine.line())),
        ("\x93", _stack_global),
        ("\x92", _call_with_keywords),
        ("Q", _push(lambda machine: PersistentId(machine.stack.pop()))),
        ("q", lambda machine: _put(machine, machine.number(_U8))),
        ("r", lambda machine: _put(machine, machine.number(_U32))),
    )
}
