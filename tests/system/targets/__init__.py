"""Child programs that system tests start as processes of their own."""
