"""How properties are tried: as long as it takes, because a busy machine breaks no property."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
