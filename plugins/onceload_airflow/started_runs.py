"""Runs of a pipeline's own DAG that a task of another DAG starts and waits for, without occupying a worker."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from onceload_airflow.versions import AirflowException, AirflowFailException, DagRunTriggerException, start_run

if TYPE_CHECKING:
    from airflow.sdk import Context

SUCCESS, FAILED = ENDED = ("success", "failed")
#: A run that a person has deleted, while the task waited for it.
DELETED = "deleted"


class RunEnded(BaseTrigger):
    """Fires when a run has ended or was deleted. Airflow's own trigger waits forever for a deleted run."""

    def __init__(self, *, dag_id: str, run_id: str, every_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's own.
        self.dag_id = dag_id
        self.run_id = run_id
        self.every_s = every_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("dag_id", "run_id", "every_s")
        return "onceload_airflow.started_runs.RunEnded", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (state := await self._state()) is None:
            await asyncio.sleep(self.every_s)
        yield TriggerEvent(state)  # type: ignore[no-untyped-call] # Airflow's own.

    async def _state(self) -> str | None:
        """How the run has ended; None while it has not. In this order, a run that ends meanwhile is not missed."""
        for state in ENDED:
            if await self._count(state):
                return state
        return None if await self._count() else DELETED

    async def _count(self, *states: str) -> int:
        # Only the triggerer imports it, and it has.
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        count = sync_to_async(RuntimeTaskInstance.get_dr_count)
        return int(await count(dag_id=self.dag_id, run_ids=[self.run_id], states=list(states) or None))


class StartRun(TriggerDagRunOperator):
    """Start a run, and wait until it ends. If it is deleted meanwhile, the task fails."""

    def execute(self, context: "Context") -> None:
        try:
            super().execute(context)
        except DagRunTriggerException as asked:
            start_run(asked)
            context["ti"].xcom_push(key="trigger_run_id", value=asked.dag_run_id)
            trigger = RunEnded(dag_id=asked.trigger_dag_id, run_id=asked.dag_run_id, every_s=float(self.poke_interval))
            self.defer(trigger=trigger, method_name="ended")

    def ended(self, context: "Context", event: str) -> None:
        del context
        run = f"run {self.trigger_run_id} of {self.trigger_dag_id}"
        if event == DELETED:
            raise AirflowFailException(
                f"{run}, which this task had started, was deleted before it ended. What it had committed stays loaded, "
                "and the rest of its files is not loaded. Clear this task to start the run again: nothing is loaded "
                "twice"
            )
        if event == FAILED:
            raise AirflowException(f"{run} failed. Read the logs of its failed tasks. Clear this task to run it again")
        self.log.info("%s succeeded", run)
