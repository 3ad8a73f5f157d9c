"""How results reach the user: findings, documents, tables, formats."""
