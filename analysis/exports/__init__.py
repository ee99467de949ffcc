"""One file per form in which a run's report is handed on: report.json, Markdown, JUnit, OpenMetrics and the like."""
