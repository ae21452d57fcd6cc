"""The parts that the page is made of: plain values with the words beside them, nothing that reads or computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """One number at the top of the page."""

    label: str
    """What it counts."""
    value: str
    """The number, with its unit."""
    note: str = ""
    """A few words more."""


@dataclass(frozen=True)
class Chart:
    """A chart with its words."""

    title: str
    """Heading."""
    svg: str
    """The chart itself, made by `figures`: the only text that enters the page unescaped."""
    alt: str
    """What a reader who cannot see it should know."""
    caption: str = ""
    """One sentence below."""
    legend: tuple[tuple[str, str], ...] = ()
    """Pairs of a mark (``ink``, ``accent``, ``second``, ``bar``, ``hatch``, ``dashes``, ``edge`` or ``class-0`` to ``class-7``) and its meaning."""


@dataclass(frozen=True)
class Picture:
    """A small picture."""

    uri: str
    """The PNG file as a ``data:`` address."""
    alt: str
    """What it shows."""
    caption: str
    """Its number or name."""
    note: str = ""
    """A figure below the caption."""


@dataclass(frozen=True)
class Tick:
    """A number beside a panel."""

    text: str
    """The number."""
    percent: float
    """Its distance from the left or the top, as a percentage of the side."""


@dataclass(frozen=True)
class Panel:
    """A map or an image with its axes."""

    title: str
    """Which variable and which place of the dimensions that are not drawn; may be empty."""
    uri: str
    """The PNG file as a ``data:`` address, one pixel for each place."""
    alt: str
    """What it shows."""
    aspect: float
    """Width over height, as drawn."""
    across: tuple[Tick, ...]
    """Numbers below."""
    down: tuple[Tick, ...]
    """Numbers to the left."""
    names: tuple[str, str]
    """Names of the horizontal and of the vertical axis; empty for longitudes and latitudes."""


@dataclass(frozen=True)
class Scale:
    """The colour scale of some panels."""

    colours: str
    """``diverging``, ``sequential`` or ``greys``."""
    ends: tuple[str, ...]
    """Numbers at the lower end, in the middle where there is one, and at the upper end, with units."""
    masked: bool
    """Whether grey places are masked."""


@dataclass(frozen=True)
class FieldFigure:
    """A mean, a mode or the scores of one as maps or images."""

    title: str
    """What it is, and its share."""
    groups: tuple[tuple[tuple[Panel, ...], Scale], ...]
    """Panels with their colour scale: one group for each variable."""


@dataclass(frozen=True)
class Bar:
    """One entry of a component as a bar that starts in the middle."""

    name: str
    """Name of the feature."""
    value: str
    """The entry in digits."""
    percent: float
    """Length, as a percentage of the longest."""
    negative: bool
    """Whether it points to the left."""


@dataclass(frozen=True)
class Bars:
    """The largest entries of one component."""

    title: str
    """Which component, and its share."""
    bars: tuple[Bar, ...]
    """Longest first."""
    caption: str
    """How many entries were left out."""


@dataclass(frozen=True)
class Components:
    """What the components look like, as pictures or as bars."""

    pictures: tuple[Picture, ...]
    """The mean and the first components, when rows are pictures."""
    bars: tuple[Bars, ...]
    """The first components, when they are not."""
    note: str
    """How to read them."""
    fields: tuple[FieldFigure, ...] = ()
    """The mean and the first components, when features are places of named dimensions."""
    charts: tuple[Chart, ...] = ()
    """The mean and the first components as lines, when features lie along one coordinate."""


@dataclass(frozen=True)
class Reconstruction:
    """A few samples rebuilt from more and more components."""

    heads: tuple[str, ...]
    """Column headings: the numbers of components, then the original."""
    names: tuple[str, ...]
    """Name of each sample."""
    errors: tuple[tuple[str, ...], ...]
    """For each sample, the error left with each number of components."""
    pictures: tuple[tuple[str, ...], ...]
    """For each sample, ``data:`` addresses: one for each number of components, then the original; or nothing."""
    charts: tuple[Chart, ...]
    """Lines in place of pictures."""
    note: str
    """How to read them."""
    aspect: float = 1.0
    """Width over height of the pictures."""


@dataclass(frozen=True)
class Outliers:
    """Rows that do not fit."""

    lead: str
    """How many rows are beyond the limits."""
    chart: Chart | None
    """T² and Q of rows with their limits; None where they cannot be drawn."""
    table: ReportTable
    """The rows that fit least."""
    rebuilt: Reconstruction | None
    """The same rows rebuilt from rising numbers of components; None where they are not known."""


@dataclass(frozen=True)
class Segment:
    """A piece of a horizontal bar."""

    label: str
    """What it stands for."""
    value: str
    """Its size in words."""
    percent: float
    """Its length, as a percentage of the whole bar."""
    colour: str
    """Which of the page's colours: ``accent``, ``second``, ``third`` or ``muted``."""


@dataclass(frozen=True)
class MemoryBar:
    """Peak, projection and ceiling on one scale."""

    peak: float
    """Length of what was used, in percent."""
    projected: float | None
    """Place of what was projected, in percent."""
    allowed: float
    """Place of the ceiling, in percent."""
    within: bool
    """Whether the ceiling was kept."""
    words: str
    """The same as a sentence."""


@dataclass(frozen=True)
class ReportTable:
    """A table: its caption, headings and cells."""

    caption: str
    """What it holds."""
    heads: tuple[str, ...]
    """One heading for each column."""
    rows: tuple[tuple[str, ...], ...]
    """Cells; the first of each row is its heading."""


@dataclass(frozen=True)
class Facts:
    """Names with values, in a box of their own."""

    title: str
    """Heading."""
    pairs: tuple[tuple[str, str], ...]
    """Name and value."""


@dataclass(frozen=True)
class Accuracy:
    """How sure an approximate answer is."""

    lead: str
    """The same in a sentence or two."""
    chart: Chart | None
    """Bounds of the errors, component by component; None without a certificate."""
    proven: tuple[str, ...]
    """What holds for certain, in sentences."""
    statistical: tuple[str, ...]
    """What rests on an estimate, in sentences."""
    table: ReportTable | None
    """The bounds in digits."""
    counts: ReportTable | None
    """How many components it takes for shares of the variance."""
    facts: Facts
    """Passes, pilot and columns."""


@dataclass(frozen=True)
class ComponentCount:
    """How many components are more than noise, by every rule."""

    lead: str
    """The same in a sentence."""
    chart: Chart | None
    """The eigenvalues with the thresholds; None where no rule has one."""
    table: ReportTable
    """The rules with their figures."""


@dataclass(frozen=True)
class Loadings:
    """Loadings of features on the first components."""

    table: ReportTable
    """A row for each feature."""
    note: str
    """What they are, and which features and components are left out."""


@dataclass(frozen=True)
class DataQuality:
    """What the reading says of the data themselves."""

    lead: str
    """What was examined."""
    charts: tuple[Chart, ...]
    """Drift and missing values along the file."""
    table: ReportTable
    """The figures."""


@dataclass(frozen=True)
class Page:
    """Everything the template needs."""

    name: str
    """Name of the run."""
    summary: str
    """The result in one sentence."""
    byline: tuple[str, ...]
    """When, with what, and which run."""
    tiles: tuple[Tile, ...]
    """The numbers at the top."""
    warnings: tuple[str, ...]
    """What limits the use of the result."""
    notes: tuple[str, ...]
    """Facts that take nothing from it."""
    components: Components
    """What the components look like."""
    spectrum: tuple[Chart, ...]
    """Eigenvalues and their sums."""
    scores: tuple[Chart, ...]
    """The samples on the axes."""
    series: tuple[Chart, ...]
    """The scores along the coordinate of the samples."""
    score_fields: tuple[FieldFigure, ...]
    """The scores as maps or images of the samples."""
    scores_note: str
    """How many samples the scores are of."""
    reconstruction: Reconstruction | None
    """A few samples, rebuilt."""
    outliers: Outliers | None
    """Rows that do not fit; None where T² and Q were not asked for."""
    memory: MemoryBar | None
    """The ceiling, and how it was kept."""
    time: tuple[Segment, ...]
    """Where the time went."""
    accuracy: Accuracy | None
    """How sure the answer is; None where it is exact."""
    certificate: tuple[str, ...]
    """What is known about the error, in sentences."""
    comparison: ReportTable
    """The plan against what was measured."""
    spectrum_table: ReportTable
    """The first eigenvalues in digits."""
    facts: tuple[Facts, ...]
    """Source, plan, versions."""
    component_count: ComponentCount | None = None
    """How many components are more than noise; None where it is not known."""
    quality: DataQuality | None = None
    """Quality of the data; None where it was not examined."""
    loadings: Loadings | None = None
    """Loadings in digits; None where features have no names and are many, or are drawn."""
    kicker: str = "Principal component analysis"
    """What was done, above the name."""
    components_title: str = "The components"
    """Heading of what `components` shows."""
