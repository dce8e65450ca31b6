"""CarelessWhisper (Krichli, Raj and Keshet 2025, arXiv:2508.12301): Whisper as sound comes."""
