"""`report.html`: one page, without anything from elsewhere, that sets the strategies side by side."""
