"""What the processes of local sessions are forked with."""

import onceload_jobs.work.local.tasks  # noqa: F401 - all that a session needs.
from onceload_jobs.work.without_pandas import keep_pandas_out

keep_pandas_out()
