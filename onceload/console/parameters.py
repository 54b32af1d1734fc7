"""The parameters of addresses, and the right to see what one names."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

from fastapi import HTTPException, Query, Request

from onceload.console.access import Access

#: A pipeline's or a file's name: the longest that the ledger takes.
Name = Annotated[str, Query(pattern=r"^[^\x00]{1,2000}$")]
Word = Annotated[str, Query(pattern=r"^[^\x00]{0,10000}$")]
Number = Annotated[int, Query(ge=0, lt=2**63)]
Page = Annotated[int, Query(ge=1, le=10_000)]


def may_see(access: Access) -> Callable[[Request, str], None]:
    """A dependency that refuses a pipeline that the user has no right to see."""

    def check(request: Request, pipeline: Name) -> None:
        if pipeline not in access.seen_by(request, [pipeline]):
            raise HTTPException(HTTPStatus.FORBIDDEN, f"you have no right to see pipeline {pipeline}")

    return check
