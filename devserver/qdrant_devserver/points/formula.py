"""Translate score formulas for the engine."""

from collections.abc import Callable

import qdrant_edge as edge

from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import malformed
from qdrant_devserver.features import Features
from qdrant_devserver.fields import Document, Json, read_list, read_number, read_object, require
from qdrant_devserver.points.filters import is_condition, read_condition, read_geo_point

_NO_QUERY = "Expected some form of vector, id, or a type of query"
_EXTREMES = {"max": edge.Expression.Max, "min": edge.Expression.Min}
_DECAYS = {"lin_decay": edge.DecayKind.Lin, "exp_decay": edge.DecayKind.Exp, "gauss_decay": edge.DecayKind.Gauss}
_LISTS = {"mult": edge.Expression.Mult, "sum": edge.Expression.Sum}
_UNARY: dict[str, Callable[[edge.Expression], edge.Expression]] = {
    "neg": edge.Expression.Neg,
    "abs": edge.Expression.Abs,
    "sqrt": edge.Expression.Sqrt,
    "exp": edge.Expression.Exp,
    "log10": edge.Expression.Log10,
    "ln": edge.Expression.Ln,
}


def read_formula(document: Document, features: Features) -> edge.Formula:
    """Build the engine's formula from a `{"formula", "defaults"?}` query.

    Raises:
        ErrorAnswer: 400 for an expression that the served version does not support.
    """
    defaults = read_object(document.get("defaults") or {}, "defaults")
    with engine_errors():
        return edge.Formula(Expressions(features).read(require(document, "formula")), defaults)


class Expressions:
    """Reader for the expressions of the served version."""

    def __init__(self, features: Features) -> None:
        self._lists = _LISTS | (_EXTREMES if features.formula_extremes else {})
        self._unary = _UNARY | ({"acosh": edge.Expression.Acosh} if features.formula_extremes else {})

    def read(self, value: Json) -> edge.Expression:
        """Build the engine's form of one expression.

        Raises:
            ErrorAnswer: 400 if the expression is malformed, or the served version does not support it.
        """
        if isinstance(value, str):
            return edge.Expression.Variable(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return edge.Expression.Constant(float(value))
        if not isinstance(value, dict) or not value:
            raise malformed(_NO_QUERY)
        if is_condition(value):
            return edge.Expression.Condition(read_condition(value, "formula"))
        return self._operation(value)

    def _operation(self, document: Document) -> edge.Expression:
        for name, argument in document.items():
            if name in self._lists:
                return self._lists[name]([self.read(item) for item in read_list(argument, name)])
            if name in self._unary:
                return self._unary[name](self.read(argument))
            if name in _DECAYS:
                return self._decay(_DECAYS[name], read_object(argument, name))
            if name in _OTHERS:
                return _OTHERS[name](self, argument)
        raise malformed(_NO_QUERY)

    def _decay(self, kind: edge.DecayKind, document: Document) -> edge.Expression:
        target = document.get("target")
        return edge.Expression.Decay(
            kind,
            self.read(require(document, "x")),
            None if target is None else self.read(target),
            read_number(document, "midpoint"),
            read_number(document, "scale"),
        )

    def _div(self, argument: Json) -> edge.Expression:
        document = read_object(argument, "div")
        left, right = self.read(require(document, "left")), self.read(require(document, "right"))
        return edge.Expression.Div(left, right, read_number(document, "by_zero_default"))

    def _pow(self, argument: Json) -> edge.Expression:
        document = read_object(argument, "pow")
        return edge.Expression.Pow(self.read(require(document, "base")), self.read(require(document, "exponent")))

    def _geo_distance(self, argument: Json) -> edge.Expression:
        document = read_object(argument, "geo_distance")
        origin = read_geo_point(require(document, "origin"), "geo_distance.origin")
        return edge.Expression.GeoDistance(origin, require(document, "to"))


_OTHERS: dict[str, Callable[[Expressions, Json], edge.Expression]] = {
    "div": Expressions._div,
    "pow": Expressions._pow,
    "geo_distance": Expressions._geo_distance,
    "datetime": lambda _, argument: edge.Expression.Datetime(argument),
    "datetime_key": lambda _, argument: edge.Expression.DatetimeKey(argument),
}
