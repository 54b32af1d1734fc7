"""Templates, and how values are written on pages. Everything is escaped."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onceload.terminal import counted, size_in_words, time_in_words

#: The width and height of a sparkline.
_WIDTH, _HEIGHT = 144, 24


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("onceload.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "counted": counted,
        "moment": moment,
        "number": number,
        "size": lambda size: "" if size is None else size_in_words(int(size)),
        "span_of_time": lambda seconds: "" if seconds is None else time_in_words(float(seconds)),
        "sparkline": sparkline,
    }
    environment.globals["query"] = query
    return environment


def query(**values: object) -> str:
    """The query of an address; what is None is left out."""
    return urlencode({name: value for name, value in values.items() if value is not None})


def rendered(template: str, values: Mapping[str, object]) -> str:
    return _environment().get_template(template).render(values)


@cache
def static(name: str) -> bytes:
    return files("onceload.console").joinpath("static", name).read_bytes()


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def moment(value: datetime | None) -> Markup:
    """A time in UTC; the whole of it for machines."""
    if value is None:
        return Markup("")
    return Markup('<time datetime="{}">{}</time>').format(value.isoformat(), f"{value:%Y-%m-%d %H:%M:%S}")


def sparkline(values: Sequence[float | None], words: str, of_each: Sequence[str] = ()) -> Markup:
    """A bar for each value, as SVG, with words of its own if there are some."""
    step, highest = _WIDTH / max(len(values), 1), max([*(value or 0 for value in values), 1])
    bars = Markup("").join(
        Markup('<rect x="{}" y="{}" width="{}" height="{}">{}</rect>').format(
            round(index * step, 2),
            round(_HEIGHT - height, 2),
            round(step * 0.8, 2),
            round(height, 2),
            Markup("<title>{}</title>").format(of_each[index]) if of_each else "",
        )
        for index, value in enumerate(values)
        if (height := max(_HEIGHT * value / highest, 1.0) if value else 0)
    )
    return Markup(
        '<svg class="sparkline" role="img" aria-label="{words}" viewBox="0 0 {width} {height}" width="{width}" '
        'height="{height}" preserveAspectRatio="none"><title>{words}</title>{bars}</svg>'
    ).format(words=words, width=_WIDTH, height=_HEIGHT, bars=bars)
