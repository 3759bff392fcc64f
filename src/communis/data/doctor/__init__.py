"""The doctor: looks at a dataset before anybody trains on it, says what is wrong and how to mend
it."""

from communis.data.doctor.examine import examine
from communis.data.doctor.finding import Finding

__all__ = ["Finding", "examine"]
