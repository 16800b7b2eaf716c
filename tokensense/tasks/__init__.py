"""Problems with checkable answers."""
