"""How the table's rules are written for ops whose dims depend on their arguments."""
