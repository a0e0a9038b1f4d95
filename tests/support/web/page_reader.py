"""A browser without JavaScript for the explorer: reads pages, follows redirects, and sends forms."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx

Attributes = dict[str, str]


@dataclass(slots=True)
class Form:
    """A form with the values of its fields."""

    action: str
    method: str
    values: dict[str, str] = field(default_factory=dict)


class Page(HTMLParser):
    """Elements, texts and forms of a page.

    Attributes:
        elements: Tag and attributes of each element, in order.
        text: The texts between tags.
    """

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(convert_charrefs=True)
        self.response, self.status = response, response.status_code
        self.elements: list[tuple[str, Attributes]] = []
        self.forms: list[Form] = []
        self.text = ""
        self._field = ""
        self.feed(response.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.elements.append((tag, values))
        if tag == "form":
            self.forms.append(Form(values.get("action", self.response.url.path), values.get("method", "get")))
        elif self.forms and "name" in values and tag in ("input", "textarea", "select"):
            self._field = values["name"]
            self.forms[-1].values[self._field] = values.get("value", "")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.elements and self.elements[-1][0] == "textarea":
            self.forms[-1].values[self._field] += data

    def form(self, **values: str) -> Form:
        """Return the first form with POST that has these values."""
        for form in self.forms:
            if form.method == "post" and values.items() <= form.values.items():
                return form
        raise AssertionError(f"no form with {values}: {[form.values for form in self.forms]}")

    def links(self) -> Iterator[str]:
        """Yield each address that the page links to or loads."""
        for _, values in self.elements:
            yield from (value for name, value in values.items() if name in ("href", "src", "action", "hx-get"))


class Browser:
    """Sends requests as a browser does, and keeps the cookie."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=20, follow_redirects=True, headers={"Origin": url})

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    @property
    def cookie(self) -> str:
        """The cookie of the session, as NAME=VALUE."""
        [(name, value)] = self.http.cookies.items()
        return f"{name}={value}"

    def open(self, path: str, **query: str) -> Page:
        return Page(self.http.get(f"/ui{path}", params=query or None))

    def send(self, form: Form, **values: str) -> Page:
        return Page(self.http.post(form.action, data=form.values | values))

    def sign_in(self, token: str) -> Page:
        return self.send(self.open("/sign-in").form(), token=token)
