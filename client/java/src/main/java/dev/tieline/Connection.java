package dev.tieline;

/** One {@code Converse} stream, and its own default lane. Any thread may use it. */
public final class Connection extends Lane implements AutoCloseable {
    Connection(Link link) {
        super(link, "");
    }

    /** The lane of this name: letters, digits, {@code _}, {@code .} and {@code -}. */
    public Lane lane(String name) {
        return new Lane(link, name);
    }

    /** Ends the connection, and what runs on it unless that is resumable. */
    @Override
    public void close() {
        link.close();
    }
}
