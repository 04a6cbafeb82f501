"""Frontends: one package per protocol."""
