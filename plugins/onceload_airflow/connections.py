"""The connections of Airflow that are used, and the error if one is missing. Nothing of Airflow is imported."""

from dataclasses import dataclass

from onceload_core.errors import CallAgain

CONNECTION = CONNECTION_TYPE = "onceload"
#: The connection (type aws) to the object store of the files, if the environment has no credentials.
STORE = "onceload_store"


@dataclass(eq=False)
class ConnectionNotFound(CallAgain):
    """Airflow gives the same error for a missing connection and for one that it cannot look up at the moment."""

    connection: str

    def __str__(self) -> str:
        kind, use, or_else = "onceload ...", "the database", ""
        if self.connection == CONNECTION:
            or_else = ", or set ONCELOAD_DSN"
        if self.connection == STORE:
            kind, use = "aws", "the object store of the files"
            or_else = ", without credentials if the machine has a role, or set AWS_ACCESS_KEY_ID"
        return (
            f"connection {self.connection} ({use}) was not found in Airflow. Nothing was changed. Create it "
            f"(airflow connections add {self.connection} --conn-type {kind}){or_else}"
        )
