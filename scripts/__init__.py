"""Checks that ``make test`` runs beside pytest; nothing of this is installed."""
