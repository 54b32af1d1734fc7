"""Data quality: audits of a staged batch, their pages, drafts of suites."""
