"""A published suite of records about approvals, answered by the portal's own functions."""
