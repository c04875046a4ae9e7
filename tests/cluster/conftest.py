"""Settings of the property tests here."""

from __future__ import annotations

from hypothesis import settings

# On a busy machine an example can take long without being wrong.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
