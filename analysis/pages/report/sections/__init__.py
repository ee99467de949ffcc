"""The sections of the report, one file each; what is absent from the data is absent from page and Markdown.

Drawing is `charts`, wording is `text.words`, the columns of a step are `columns`.
"""

from tailrate.analysis.pages.report.sections.again import AGAIN
from tailrate.analysis.pages.report.sections.batches import BATCHES
from tailrate.analysis.pages.report.sections.capacity import CAPACITY
from tailrate.analysis.pages.report.sections.energy import ENERGY
from tailrate.analysis.pages.report.sections.every_step import EVERY_STEP
from tailrate.analysis.pages.report.sections.faults import FAULTS
from tailrate.analysis.pages.report.sections.over_time import OVER_TIME
from tailrate.analysis.pages.report.sections.pairs import PAIRS
from tailrate.analysis.pages.report.sections.percentiles import PERCENTILES
from tailrate.analysis.pages.report.sections.ran import RAN
from tailrate.analysis.pages.report.sections.rates import RATES
from tailrate.analysis.pages.report.sections.risks import RISKS
from tailrate.analysis.pages.report.sections.same_model import SAME_MODEL
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.server_metrics import SERVER_METRICS
from tailrate.analysis.pages.report.sections.slices import SLICES
from tailrate.analysis.pages.report.sections.soak import SOAK
from tailrate.analysis.pages.report.sections.stages import STAGES_SECTION
from tailrate.analysis.pages.report.sections.tokens import TOKENS_SECTION
from tailrate.analysis.pages.report.sections.trust import TRUST

SECTIONS: tuple[Section, ...] = (
    RATES,
    TOKENS_SECTION,
    CAPACITY,
    PERCENTILES,
    SLICES,
    OVER_TIME,
    SOAK,
    FAULTS,
    PAIRS,
    STAGES_SECTION,
    BATCHES,
    ENERGY,
    SERVER_METRICS,
    SAME_MODEL,
    EVERY_STEP,
    RISKS,
    TRUST,
    RAN,
    AGAIN,
)
"""From the top of the page down."""
