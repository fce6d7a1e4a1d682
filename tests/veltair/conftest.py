"""What all tests below share that compile."""

from __future__ import annotations

from short_measurements import measured_shortly  # noqa: F401
