"""What foxflow ships for the tests of plugin authors."""
