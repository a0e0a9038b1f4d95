"""Parse the text of a scoring expression into a syntax tree. Every node has its position: `text[start:end]`.

comparison = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
sum = product {("+" | "-") product}, product = unary {("*" | "/") unary}, unary = ["-"] primary
primary = number | text | name | name "(" [comparison {"," comparison}] ")" | "(" comparison ")"
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.spec.printable import printable

MAX_EXPRESSION_CHARS, MAX_DEPTH, MAX_TOKENS = 1000, 24, 400
MAX_SNIPPET_CHARS = 72

_TOKEN = re.compile(
    r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r'|(?P<text>"[^"\n]*"|\'[^\'\n]*\')'
    r"|(?P<sign><=|>=|==|!=|[-+*/(),<>])"
)
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class ExpressionInvalid(AgentMemoryError):
    """An invalid scoring expression. The message shows the error's position by a caret.

    Attributes:
        position: Position of the first wrong character, counted from 1.
    """

    def __init__(self, text: str, start: int, message: str) -> None:
        self.position = start + 1
        line_start = text.rfind("\n", 0, start) + 1
        line = text[line_start:].partition("\n")[0]
        snippet_start = max(0, start - line_start - MAX_SNIPPET_CHARS // 2)
        snippet = printable(line[snippet_start : snippet_start + MAX_SNIPPET_CHARS])
        caret = " " * len(printable(line[snippet_start : start - line_start])) + "^"
        super().__init__(f"character {self.position}: {message}\n  {snippet}\n  {caret}")


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """A number without a sign: a minus before it is a `Negation`."""

    start: int
    end: int
    value: float


@dataclass(frozen=True, slots=True)
class TextLiteral:
    """A quoted text. `value` excludes the quotes."""

    start: int
    end: int
    value: str


@dataclass(frozen=True, slots=True)
class Name:
    """A name without arguments: a variable, or the word `type`. The parser does not check that the name exists."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function. The parser checks neither its name nor the number of its arguments."""

    start: int
    end: int
    name: str
    arguments: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """A minus sign and its operand, or a subtracted term."""

    start: int
    end: int
    operand: "Part"


@dataclass(frozen=True, slots=True)
class BinaryOperation:
    """Two operands of a binary operator. `operator_start` is the position of the operator."""

    start: int
    end: int
    sign: str
    operator_start: int
    left: "Part"
    right: "Part"


Part = NumberLiteral | TextLiteral | Name | FunctionCall | Negation | BinaryOperation


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    value: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.value)


def parse_expression(text: str) -> Part:
    """Return the syntax tree of an expression.

    Raises:
        ExpressionInvalid: If it has a syntax error, or more than 1,000 characters, 24 levels of nesting or 400 tokens.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ExpressionInvalid(
            text, MAX_EXPRESSION_CHARS, f"longer than {MAX_EXPRESSION_CHARS} characters: shorten it"
        )
    return _Parser(text).whole()


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        if text[position] in " \t\n":
            position += 1
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionInvalid(text, position, _unknown_character(text, position))
        yield _Token(str(match.lastgroup), match.group(), position)
        position = match.end()
    yield _Token("end", "", len(text))


def _unknown_character(text: str, position: int) -> str:
    if text[position] in "\"'":
        return "this text has no closing quote: add it"
    if text[position] == "=":
        return "a comparison for equality is =="
    if text[position] in "^%&|!":
        return (
            f"there is no operator {text[position]!r}: use pow(a, b), if(condition, a, b), or min and max of conditions"
        )
    return f"{text[position]!r} has no meaning here: remove it"


class _Parser:
    """Reads one expression by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._place = 0
        self._depth = 0
        if len(self._tokens) - 1 > MAX_TOKENS:  # the last is the end
            raise self._fault(self._tokens[MAX_TOKENS], f"more than {MAX_TOKENS} tokens: simplify it")

    def whole(self) -> Part:
        part = self._comparison()
        if self._next.kind != "end":
            raise self._fault(self._next, f"{self._next.value!r} is unexpected here: an operator is missing before it")
        return part

    def _comparison(self) -> Part:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._fault(self._next, f"nested deeper than {MAX_DEPTH}: simplify it")
        part = self._pairs(self._sum, _COMPARISONS, is_chain=False)
        self._depth -= 1
        return part

    def _sum(self) -> Part:
        return self._pairs(self._product, ("+", "-"))

    def _product(self) -> Part:
        return self._pairs(self._unary, ("*", "/"))

    def _pairs(self, operand: Callable[[], Part], signs: tuple[str, ...], *, is_chain: bool = True) -> Part:
        left = operand()
        is_first = True
        while self._next.kind == "sign" and self._next.value in signs:
            sign = self._take()
            if not (is_first or is_chain):
                raise self._fault(sign, "comparisons cannot be chained: use min(a < b, b < c)")
            right = operand()
            left, is_first = BinaryOperation(left.start, right.end, sign.value, sign.start, left, right), False
        return left

    def _unary(self) -> Part:
        if self._next.value != "-" or self._next.kind != "sign":
            return self._primary()
        minus = self._take()
        operand = self._primary()
        return Negation(minus.start, operand.end, operand)

    def _primary(self) -> Part:
        token = self._take()
        match token.kind:
            case "number":
                return NumberLiteral(token.start, token.end, float(token.value))
            case "text":
                return TextLiteral(token.start, token.end, token.value[1:-1])
            case "name":
                return self._named(token)
        if token.value == "(":
            inner = self._comparison()
            # Include the parentheses in the position of the node, for messages that quote it.
            return replace(inner, start=token.start, end=self._expect(")").end)
        token_text = repr(token.value) if token.value else "the end"
        raise self._fault(token, f"{token_text} found where a number, a variable or a function is expected")

    def _named(self, token: _Token) -> Part:
        if self._next.value != "(":
            return Name(token.start, token.end, token.value)
        self._take()
        arguments: list[Part] = []
        while self._next.value != ")":
            if arguments:
                self._expect(",")
            arguments.append(self._comparison())
        return FunctionCall(token.start, self._take().end, token.value, tuple(arguments))

    def _expect(self, value: str) -> _Token:
        token = self._take()
        if token.value != value:
            found = repr(token.value) if token.value else "the end"
            raise self._fault(token, f"{value!r} expected here instead of {found}")
        return token

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._tokens[self._place]
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token

    def _fault(self, token: _Token, message: str) -> ExpressionInvalid:
        return ExpressionInvalid(self._text, token.start, message)
