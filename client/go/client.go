// Package tieline speaks to a Tieline server: the Responses API over gRPC, many turns on a connection.
package tieline

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "tieline.dev/client/go/tielinev1"
)

// Options say how a server is reached. The zero value is a server without keys and TLS.
type Options struct {
	Key             string            // Without TLS it can be read on its way.
	TLS             *tls.Config       // Nil: no TLS. An empty one trusts the system's authorities.
	MaxReceiveBytes int               // Of one message; the server is told. 0: 4 MiB, as in grpc-go.
	Dial            []grpc.DialOption // Whatever else grpc-go offers.
}

// Client is a server's address, and has the calls of the schema. Their statuses come as *Error.
type Client struct {
	*grpc.ClientConn
	v1.ResponsesServiceClient
	v1.ModelsServiceClient
	receives uint64
	metadata []string
}

// Dial makes a client of the server at host:port. Nothing is sent before the first use.
func Dial(address string, options Options) (*Client, error) {
	client := &Client{receives: uint64(options.MaxReceiveBytes)}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 30 * time.Second, Timeout: 20 * time.Second, PermitWithoutStream: true,
		}),
	}
	if options.TLS != nil {
		dial = append(dial, grpc.WithTransportCredentials(credentials.NewTLS(options.TLS)))
	}
	if options.Key != "" {
		client.metadata = []string{"authorization", "Bearer " + options.Key}
	}
	if options.MaxReceiveBytes > 0 {
		dial = append(dial, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(options.MaxReceiveBytes)))
	}
	var err error
	client.ClientConn, err = grpc.NewClient(address, append(dial, options.Dial...)...)
	client.ResponsesServiceClient = v1.NewResponsesServiceClient(client)
	client.ModelsServiceClient = v1.NewModelsServiceClient(client)
	return client, err
}

// Invoke is for stubs: a call with the key and the receive limit.
func (c *Client) Invoke(ctx context.Context, method string, in, out any, options ...grpc.CallOption) error {
	ctx = metadata.AppendToOutgoingContext(ctx, c.metadata...)
	return typed(c.ClientConn.Invoke(ctx, method, c.stated(in), out, options...))
}

// NewStream is for stubs, as Invoke.
func (c *Client) NewStream(ctx context.Context, description *grpc.StreamDesc, method string,
	options ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, c.metadata...)
	stream, err := c.ClientConn.NewStream(ctx, description, method, options...)
	return typedStream{stream, c}, typed(err)
}

type typedStream struct {
	grpc.ClientStream
	client *Client
}

func (s typedStream) SendMsg(m any) error { return typed(s.ClientStream.SendMsg(s.client.stated(m))) }
func (s typedStream) RecvMsg(m any) error { return typed(s.ClientStream.RecvMsg(m)) }

// stated is the request with the receive limit, where it has the field and the caller left it unset.
func (c *Client) stated(request any) any {
	message, ok := request.(proto.Message)
	if !ok || c.receives == 0 {
		return request
	}
	field := message.ProtoReflect().Descriptor().Fields().ByName("max_receive_bytes")
	if field == nil || message.ProtoReflect().Has(field) {
		return request
	}
	message = proto.Clone(message)
	message.ProtoReflect().Set(field, protoreflect.ValueOfUint64(c.receives))
	return message
}
