"""How what both ends can say becomes bytes: ``json`` for text transports, ``proto`` for gRPC."""
