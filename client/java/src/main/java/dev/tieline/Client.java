package dev.tieline;

import com.google.protobuf.Message;
import dev.tieline.v1.ResponsesServiceGrpc;
import dev.tieline.v1.ResponsesServiceGrpc.ResponsesServiceBlockingStub;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/** A server's address. Nothing is sent before the first use. */
public final class Client implements AutoCloseable {
    private final ManagedChannel managed;
    private final Channel channel;
    private final long receives;

    private Client(Builder builder) {
        // Nothing here blocks in a callback, so that no thread is needed but those of the network.
        ManagedChannelBuilder<?> channels = Grpc.newChannelBuilder(builder.address, builder.credentials)
                .directExecutor().keepAliveTime(30, TimeUnit.SECONDS).keepAliveTimeout(20, TimeUnit.SECONDS)
                .keepAliveWithoutCalls(true);
        if (builder.receives > 0) {
            channels.maxInboundMessageSize(builder.receives);
        }
        receives = builder.receives;
        managed = channels.build();
        var headers = new Metadata();
        if (builder.key != null) {
            headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + builder.key);
        }
        channel = ClientInterceptors.intercept(
                managed, MetadataUtils.newAttachHeadersInterceptor(headers), new Limits(receives));
    }

    /** Says how the server at {@code host:port} is reached; without more, it has neither keys nor TLS. */
    public static Builder builder(String address) {
        return new Builder(address);
    }

    /** Opens a connection, and does not wait for it: where there is no server, its first turn is told. */
    public Connection connect() {
        return new Connection(new Link(ResponsesServiceGrpc.newStub(channel), receives));
    }

    /** Makes a call, as in {@code client.call(stub -> stub.create(request))}; its status comes typed. */
    public <T> T call(Function<ResponsesServiceBlockingStub, T> call) {
        try {
            return call.apply(ResponsesServiceGrpc.newBlockingStub(channel));
        } catch (StatusRuntimeException e) {
            throw TielineException.of(e);
        }
    }

    /** For other stubs, with the key and the receive limit. A callback that blocks needs an executor of its own. */
    public Channel channel() {
        return channel;
    }

    /** Ends all connections and calls, and waits until they are over. */
    @Override
    public void close() {
        managed.shutdownNow();
        try {
            managed.awaitTermination(5, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** How a server is reached. */
    public static final class Builder {
        private final String address;
        private ChannelCredentials credentials = InsecureChannelCredentials.create();
        private String key;
        private int receives;

        private Builder(String address) {
            this.address = address;
        }

        /** The key of the caller. Without TLS it can be read on its way. */
        public Builder key(String key) {
            this.key = key;
            return this;
        }

        /** TLS that trusts the authorities of the JVM. */
        public Builder tls() {
            return credentials(TlsChannelCredentials.create());
        }

        /** TLS with authorities, or a certificate, of one's own: see {@link TlsChannelCredentials}. */
        public Builder credentials(ChannelCredentials credentials) {
            this.credentials = credentials;
            return this;
        }

        /** The limit of one message, which the server is told. Unset: 4 MiB, as in grpc-java. */
        public Builder maxReceiveBytes(int bytes) {
            this.receives = bytes;
            return this;
        }

        public Client build() {
            return new Client(this);
        }
    }

    /** Tells the receive limit in requests that have the field, where the caller left it unset. */
    private record Limits(long receives) implements ClientInterceptor {
        @Override
        public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
            return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
                @Override
                public void sendMessage(Q request) {
                    super.sendMessage(stated(request));
                }
            };
        }

        @SuppressWarnings("unchecked")
        private <Q> Q stated(Q request) {
            if (receives == 0 || !(request instanceof Message message)) {
                return request;
            }
            var field = message.getDescriptorForType().findFieldByName("max_receive_bytes");
            return field == null || message.hasField(field) ? request
                    : (Q) message.toBuilder().setField(field, receives).build();
        }
    }
}
