"""`tenant_colour`: a colour for each tenant, for light and for dark, that no other tenant has.

Colours lie on a walk around the hues of OKLCH (Ottosson 2020), where equal steps look equally far apart. The walk
leaves out the reds, which mean a missed target, and changes the lightness with each step, so that neighbours differ
also for who does not tell hues apart. All stand out against the page (contrast of 3 or more, WCAG 2.2, 1.4.11).
"""

from __future__ import annotations

from functools import cache
from math import cos, radians, sin

HUES = 12
FIRST_HUE, HUE_SPAN = 62.0, 295.0  # degrees: from orange over green and blue to pink
STRIDE = 7  # hues between one tenant and the next; it shares no factor with HUES
LIGHTNESS = {"light": (0.50, 0.64, 0.38), "dark": (0.72, 0.58, 0.86)}
CHROMA = 0.14


@cache
def tenant_colour(index: int) -> tuple[str, str]:
    """The colours on a light and on a dark page, as #rrggbb; different ones for 72 tenants.

    >>> tenant_colour(0) != tenant_colour(1), len({tenant_colour(i) for i in range(72)})
    (True, 72)
    """
    turn, place = divmod(index, HUES)
    half_step = 0.5 * (turn // 3 % 2)  # the third walk begins between the hues of the first
    hue = FIRST_HUE + HUE_SPAN / HUES * ((place * STRIDE + 8) % HUES + half_step)
    level = (place + turn) % 3
    return _hex(LIGHTNESS["light"][level], hue), _hex(LIGHTNESS["dark"][level], hue)


def _hex(lightness: float, hue: float) -> str:
    """The colour with as much of CHROMA as a screen can show."""
    chroma = CHROMA
    rgb = _linear_rgb(lightness, chroma, hue)
    while min(rgb) < 0 or max(rgb) > 1:
        chroma -= 0.002
        rgb = _linear_rgb(lightness, chroma, hue)
    return "#" + "".join(f"{round(255 * _gamma(value)):02x}" for value in rgb)


def _linear_rgb(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    a, b = chroma * cos(radians(hue)), chroma * sin(radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
