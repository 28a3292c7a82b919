"""Simulators behind one contract, each imported only when it is asked for."""
