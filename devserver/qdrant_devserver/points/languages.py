"""Languages of text processing by name and code."""

from typing import Final

import qdrant_edge as edge

_CODES = {
    "ar": "arabic",
    "az": "azerbaijani",
    "bn": "bengali",
    "ca": "catalan",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "eu": "basque",
    "fi": "finnish",
    "fr": "french",
    "he": "hebrew",
    "hi-en": "hinglish",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "jp": "japanese",
    "kk": "kazakh",
    "ne": "nepali",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sl": "slovene",
    "sv": "swedish",
    "ta": "tamil",
    "tg": "tajik",
    "tr": "turkish",
    "zh": "chinese",
}
_NAMES = {**_CODES, **{name: name for name in _CODES.values()}}

# The engine's members have capitalised names: "english" is `Language.English`.
WITH_STOP_WORDS: Final[dict[str, edge.Language]] = {
    key: getattr(edge.Language, name.title()) for key, name in _NAMES.items() if hasattr(edge.Language, name.title())
}
STEMMED: Final[dict[str, edge.SnowballLanguage]] = {
    key: getattr(edge.SnowballLanguage, name.title())
    for key, name in _NAMES.items()
    if hasattr(edge.SnowballLanguage, name.title())
}
