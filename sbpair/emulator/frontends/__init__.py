"""How clients come in: one package a protocol."""
