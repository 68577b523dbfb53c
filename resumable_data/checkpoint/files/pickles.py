"""Pickles read as data: a machine that builds plain values, and where a pickle asks for code only notes its name.

Nothing is imported, called or constructed. A global becomes a `Global`, a call of one an `Object` that holds the
arguments. Time and memory are bounded by the length of the pickle: a memo index or a length in it allocates nothing,
and no value is hashed or compared by what it contains.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from resumable_data.checkpoint.files.pickle_operations import OPERATIONS, SparseMemo, build, set_items
from resumable_data.checkpoint.files.pickled import ForbiddenGlobalError, Global, Object, PickleFormatError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Callable

_read_u32, _read_i32 = struct.Struct("<I").unpack_from, struct.Struct("<i").unpack_from
# What follows EMPTY_TUPLE where an object without arguments begins whose fields come next: NEWOBJ, MEMOIZE, EMPTY_DICT,
# MEMOIZE, MARK. And what follows TUPLE1 where that is the argument of a call: MEMOIZE, REDUCE, MEMOIZE.
_BEGIN_OBJECT = b"\x81\x94}\x94("
_CALL = b"\x94R\x94"


def parse_pickle(data: bytes, is_allowed: Callable[[str, str], bool] | None = None) -> tuple[Any, tuple[Global, ...]]:
    """The pickle as plain values, `Global`, `Object`, `PersistentId` and, as keys of dicts, `Key`; and its globals.

    Args:
        data: One pickle, of protocol 2 to 5.
        is_allowed: Whether a global, by module and name, may occur; any may when None.

    Raises:
        ForbiddenGlobalError: One occurs that may not.
        PickleFormatError: `data` is no such pickle.
    """
    machine = Machine(data, is_allowed)
    try:
        return machine.run(), tuple(machine.globals.values())
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, TypeError, AttributeError, ValueError) as error:
        where = f"at byte {machine.at}"
        raise PickleFormatError(f"{where}: {type(error).__name__} ({shown(error)})") from None


class Machine:
    """The stack, the memo, and a method for each operation."""

    def __init__(self, data: bytes, is_allowed: Callable[[str, str], bool] | None) -> None:
        self.data, self.at, self.is_allowed = data, 0, is_allowed
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] | SparseMemo = []
        self.globals: dict[tuple[str, str], Global] = {}

    def run(self) -> Any:
        """Execute up to the end, which must be the end of the data.

        What nearly all of a large ``.metadata`` consists of is done here, without a call for each operation, and where
        the same operations follow one another for every object, all of them at once.
        """
        data, stack, marks, others = self.data, self.stack, self.marks, OPERATIONS
        push, pop, remember = stack.append, stack.pop, self.memo.append
        memo, at = self.memo, 0
        while True:
            code = data[at]
            at += 1
            if code == 0x6A:  # LONG_BINGET
                push(memo[_read_u32(data, at)[0]])
                at += 4
            elif code == 0x68:  # BINGET
                push(memo[data[at]])
                at += 1
            elif code == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif code == 0x29:  # EMPTY_TUPLE
                if data[at : at + 5] == _BEGIN_OBJECT:
                    stack[-1] = made = Object(stack[-1], ())
                    remember(made)
                    fields: dict[Any, Any] = {}
                    push(fields)
                    remember(fields)
                    marks.append(len(stack))
                    at += 5
                else:
                    push(())
            elif code == 0x86:  # TUPLE2
                second = pop()
                stack[-1] = (stack[-1], second)
                if data[at] == 0x94:
                    remember(stack[-1])
                    at += 1
            elif code == 0x85:  # TUPLE1
                stack[-1] = args = (stack[-1],)
                if data[at : at + 3] == _CALL:
                    remember(pop())
                    stack[-1] = made = Object(stack[-1], args)
                    remember(made)
                    at += 3
            elif code == 0x75:  # SETITEMS
                self.at = at
                set_items(self)
                if data[at] == 0x62:
                    build(self)
                    at += 1
            elif code == 0x94:  # MEMOIZE
                remember(stack[-1])
            elif code == 0x4D:  # BININT2
                push(data[at] | data[at + 1] << 8)
                at += 2
            elif code == 0x81 or code == 0x52:  # NEWOBJ, REDUCE
                args = pop()
                stack[-1] = Object(stack[-1], args)
            elif code == 0x28:  # MARK
                marks.append(len(stack))
            elif code == 0x7D:  # EMPTY_DICT
                push({})
            elif code == 0x4A:  # BININT
                push(_read_i32(data, at)[0])
                at += 4
            else:
                self.at = at
                if code == 0x2E:  # STOP
                    return self.result()
                operation = others.get(code)
                if operation is None:
                    raise PickleFormatError(f"at byte {at - 1}: operation 0x{code:02x}, which no checkpoint needs")
                operation(self)
                at, memo = self.at, self.memo
                remember = memo.append

    def result(self) -> Any:
        """The value, where nothing is left beside it."""
        if self.at != len(self.data) or len(self.stack) != 1:
            raise PickleFormatError(f"it ends at byte {self.at} of {len(self.data)}, {len(self.stack)} values left")
        return self.stack.pop()

    def take(self, length: int) -> bytes:
        """The next bytes, as many as are asked for."""
        begin = self.at
        end = begin + length
        if end > len(self.data):
            raise PickleFormatError(f"at byte {begin}: it ends, and {length} bytes should follow")
        self.at = end
        return self.data[begin:end]

    def number(self, layout: struct.Struct) -> Any:
        """The next number."""
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def line(self) -> str:
        """The text up to the next line break."""
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def pop_to_mark(self) -> list[Any]:
        """The values above the last mark, which are taken off the stack."""
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def find(self, module: Any, name: Any) -> None:
        """Push a global, which may have to be an allowed one."""
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
