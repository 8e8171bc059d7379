"""`RequireApproval`: tool calls that wait until a person has approved them."""
