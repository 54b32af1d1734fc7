"""The index of the audit pages; the library imports it by its name."""

from typing import Any

from great_expectations.render.renderer.site_builder import DefaultSiteIndexBuilder


class Index(DefaultSiteIndexBuilder):
    """The library's index builder, without removing unknown pages: they belong to other pipelines."""

    def build(self, skip_and_clean_missing: bool = False, build_index: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002 - as it is declared there.
        return super().build(skip_and_clean_missing=skip_and_clean_missing, build_index=build_index)
